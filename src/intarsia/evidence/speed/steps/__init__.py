"""Steps of a model on a GPU against their floors: decode, prompts, and where the time of one step goes."""

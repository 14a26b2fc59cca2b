"""The GPU's operations one by one, at a published geometry: time, floor, and what peers take."""

"""How every module is stored and how it runs, as /weights tells it."""

from intarsia.models.glm5_next.explain import weight_rows

__all__ = ["weight_rows"]

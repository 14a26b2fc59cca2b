"""Fused groups of `glm5_next`, as a selection counts them.

520 selected matrices of the published projection selection make 331 modules this way, and the MTP layer's 11
make 9 (and one for its experts). What the running network stacks is a table of its own (`runtime.py`).
"""

from intarsia.families.groups import GroupRule

# The order matters: KDA layers also have q, k and v.
GROUP_RULES = (
    GroupRule("fused_qkvbf_a_proj", ("q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj")),
    GroupRule("fused_qkv_a_proj", ("q_a_proj", "kv_a_proj_with_mqa")),
    GroupRule("gate_up_proj", ("gate_proj", "up_proj")),
)

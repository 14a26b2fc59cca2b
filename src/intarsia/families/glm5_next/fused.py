"""Fused groups of `glm5_next`, as a selection counts them.

520 selected matrices of the published projection selection make 331 modules this way, and the MTP layer's 11
make 9 (and one for its experts). What the running network stacks is a table of its own (`runtime.py`).
"""

from intarsia.families.groups import GroupRule

_LATENT = GroupRule("fused_qkv_a_proj", ("q_a_proj", "kv_a_proj_with_mqa"))
_GATE_UP = GroupRule("gate_up_proj", ("gate_proj", "up_proj"))

GROUPINGS = {
    "default": (
        GroupRule("fused_qkvbf_a_proj", ("q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj")),
        _LATENT,
        _GATE_UP,
    ),
    # For layouts that quantize q, k and v and leave the small b and f_a matrices in BF16.
    "qkv": (GroupRule("qkv_proj", ("q_proj", "k_proj", "v_proj")), _LATENT, _GATE_UP),
}

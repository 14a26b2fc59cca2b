"""intarsia receipt: read, check and compare what runs left behind."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from intarsia.cli.receipt_show import ReceiptDiff, ReceiptShow
from intarsia.cli.receipt_verify import ReceiptVerify

Action = (
    Annotated[ReceiptShow, tyro.conf.subcommand("show", prefix_name=False)]
    | Annotated[ReceiptVerify, tyro.conf.subcommand("verify", prefix_name=False)]
    | Annotated[ReceiptDiff, tyro.conf.subcommand("diff", prefix_name=False)]
)


@dataclass(frozen=True, kw_only=True)
class ReceiptCommand:
    """Read, check and compare receipts: show, verify, diff."""

    action: Annotated[Action, tyro.conf.arg(name="")]
    """What to do."""

    def run(self) -> int:
        return self.action.run()

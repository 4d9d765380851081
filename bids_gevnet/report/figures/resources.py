"""Draw how long each stage took and how much memory it needed."""

import pandas as pd
from markupsafe import Markup

from bids_gevnet.report.figures.drawing import PALETTE, SOFT, figure, plain_label, to_svg

_ROW_INCHES = 0.27


def draw_resources(table: pd.DataFrame, *, name: str) -> Markup | None:
    """Draw time and memory of every stage as bars.

    Parameters
    ----------
    table : DataFrame
        Columns stage, seconds and peak_memory_gb, as `--resource-monitor` writes them.
    name : str
        Prefix of identifiers in the drawing.

    Returns
    -------
    chart : Markup or None
        None if the table has nothing to draw.
    """
    measures = (("seconds", "time (s)"), ("peak_memory_gb", "largest memory (GB)"))
    if not {"stage", *(column for column, _ in measures)} <= set(table):
        return None
    numbers = table[[column for column, _ in measures]].apply(pd.to_numeric, errors="coerce")
    known = numbers["seconds"].notna()
    stages = [plain_label(str(text), 34) for text in table["stage"][known]]
    if not stages:
        return None
    numbers = numbers[known].fillna(0.0)
    description = (
        f"Time and memory of {len(stages)} stages: {numbers['seconds'].sum():.0f} s in all, "
        f"at most {numbers['peak_memory_gb'].max():.2f} GB."
    )
    height = 0.9 + _ROW_INCHES * len(stages)
    with figure(7.4, height, nrows=1, ncols=2, sharey=True) as (drawing, axes):
        for axis, (column, title), colour in zip(axes, measures, PALETTE, strict=False):
            axis.barh(range(len(stages)), numbers[column], color=colour, height=0.7)
            axis.set_xlabel(title, color=SOFT)
            axis.set_yticks(range(len(stages)), stages)
        axes[0].invert_yaxis()
        return to_svg(drawing, name, description)

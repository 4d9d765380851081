"""Draw a workflow, with Graphviz where it is installed and without it elsewhere."""

import shutil
from pathlib import Path
from typing import Any

from bids_gevnet.errors import WorkflowBuildError


def draw_graph(workflow: Any, folder: Path) -> Path:
    """Draw the nodes of a workflow and what flows between them; return the picture's path.

    Parameters
    ----------
    workflow : nipype Workflow
    folder : Path
        Gets a folder named like the workflow, with `graph.dot`, for Graphviz, and `graph.svg`.
    """
    target = folder / str(workflow.name)
    target.mkdir(parents=True, exist_ok=True)
    has_graphviz = shutil.which("dot") is not None
    before = workflow.base_dir
    workflow.base_dir = str(folder)  # where Nipype writes, whatever path it is given
    try:
        workflow.write_graph(
            "graph.dot", graph2use="flat", format="svg" if has_graphviz else "dot"
        )
    finally:
        workflow.base_dir = before
    if not has_graphviz:
        _draw_layers(target / "graph.dot", target / "graph.svg")
    return target / "graph.svg"


def _draw_layers(dot: Path, picture: Path) -> None:
    """Draw a graph from left to right, every node as far left as what it waits for allows."""
    import matplotlib.pyplot as plt
    import networkx as nx
    import pydot

    graphs = pydot.graph_from_dot_file(str(dot))
    if not graphs:
        raise WorkflowBuildError(
            expected="a graph that Nipype drew",
            found=f"{dot}, which cannot be read",
            remedy="run without --write-graph",
        )
    parsed: Any = graphs[0]
    graph = nx.DiGraph((e.get_source(), e.get_destination()) for e in parsed.get_edge_list())
    for layer, names in enumerate(nx.topological_generations(graph)):
        for name in names:
            graph.nodes[name]["layer"] = layer
    place = nx.multipartite_layout(graph, subset_key="layer")
    figure, axis = plt.subplots(figsize=(2 + 1.6 * len({x for x, _ in place.values()}), 6))
    nx.draw_networkx_edges(graph, place, ax=axis, node_size=2600, edge_color="#7b8794")
    for name, (x, y) in place.items():
        text = name.strip('"').split(" (")[-2]  # "scan (stage (module)" in Nipype's spelling
        axis.text(
            x, y, text, ha="center", va="center", fontsize=8,
            bbox={"boxstyle": "round", "fc": "#e6f0fa", "ec": "#0072b2"},
        )  # fmt: skip
    axis.set_axis_off()
    axis.margins(0.12)
    figure.savefig(picture, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)

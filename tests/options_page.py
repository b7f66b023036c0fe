"""The reference page of options: `python -m tests.options_page > docs/reference/options.md`."""

import sys

from steelyard.core._options import list_keys, list_sections
from steelyard.sim._experiment import Experiment

HEAD = """# Options of a run

Every option is a key of an experiment's TOML file and of `--set` (`--set local.lr=0.05`), and a
field of `steelyard.Experiment` or of one of its sections
(`Experiment(local=LocalTraining(lr=0.05))`). `simulate` also takes the options of `Experiment`,
`Data` and `Execution` by name. This page is generated from the fields.
"""


def write_page() -> str:
    """Return the page."""
    groups = {"Experiment": []}
    kinds = {"": "Experiment"}
    inline_names = {}
    for name, field in list_sections(Experiment).items():
        kind = field.metadata["kind"]
        groups[kind.__name__] = []
        if field.metadata["is_inline"]:
            inline_names |= {key.path: kind.__name__ for key in list_keys(kind)}
        else:
            kinds[name] = kind.__name__
    for key in list_keys(Experiment):
        section = key.path.rpartition(".")[0]
        groups[inline_names.get(key.path, kinds[section])].append(key)
    parts = [HEAD]
    for title, keys in groups.items():
        rows = [f"| `{key.path}` | `{key.default}` | {_escape(key.option.help)} |" for key in keys]
        table = ["| key | default | meaning |", "|---|---|---|", *rows]
        parts.append(f"## `{title}`\n\n" + "\n".join(table) + "\n")
    return "\n".join(parts)


def _escape(text):
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(write_page())

"""Small text files in the original formats."""

import csv
import io
import json
import lzma

AG = {
    "train": [
        (1, "Talks in Geneva", "Ministers met, and didn't agree."),
        (2, "Cup final", "The home side won the cup, 2-1."),
        (3, "Shares fall", "Shares of the bank fell; the bank said so."),
        (4, "New comet", 'A "comet" seen by\\ the new probe'),
    ],
    "test": [(4, "Probe", "The probe is lost"), (2, "Cup", "")],
}

SPEECHES = [
    {
        "play": "hamlet",
        "role": "HAMLET",
        "speeches": ["To be, or not to be:\nthat is the question.", "Words, words."],
    },
    {
        "play": "hamlet",
        "role": "POLONIUS",
        "speeches": ["What is the matter, my lord?", "Though this be madness {@}"],
    },
    {"play": "lear", "role": "FOOL", "speeches": ["Nuncle!"]},
]


def as_csv(rows):
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def put(path, raw):
    """Writes bytes, packed if the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(raw) if path.suffix == ".xz" else raw)
    return path


def write_news(folder, end=".csv", rows=None):
    for part in ("train", "test"):
        put(folder / f"{part}{end}", as_csv((rows or AG)[part]))


def write_thucnews(folder, end=".txt"):
    put(folder / f"dev{end}", "词汇阅读 是关键\t3\n中华女子学院\t3\n\nA股\t2\n".encode())
    put(folder / f"test{end}", "港股 阅读\t2\n".encode())


def write_roles(path, rows=SPEECHES):
    return put(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def leaf(users, length=80):
    """What LEAF's scripts write, for texts by user."""
    data = {}
    for user, text in users.items():
        starts = range(len(text) - length)
        data[user] = {
            "x": [text[at : at + length] for at in starts],
            "y": [text[at + length] for at in starts],
        }
    return {
        "users": list(users),
        "num_samples": [len(side["y"]) for side in data.values()],
        "user_data": data,
    }


def write_leaf(path, users, length=80):
    return put(path, json.dumps(leaf(users, length)).encode())

#!/usr/bin/env python3
"""What an embedder sees of quire-mm: every public type and function, by module, from the sources.

    scripts/public-items.py           writes docs/public-items.md
    scripts/public-items.py --check   fails if that is not current, or if there are more items than a reader can take in

A type counts as one item, and each of its public functions as one more; a trait counts as one with the functions that
it asks for; a free function counts as one. What is `#[doc(hidden)]` or behind a feature is no part of it. Fields, variants and constants are not
counted: the page of their type shows them.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FACADE = ROOT / "crates/mm/src"
LIST = ROOT / "docs/public-items.md"
MOST = 300

ITEM = re.compile(r"pub (?:unsafe )?(struct|enum|trait|type|union|(?:const |unsafe )*fn) (\w+)")
FUNCTION = re.compile(r"    (pub )?(?:const |unsafe )*fn (\w+)")
HIDING = re.compile(r"doc\(hidden\)|feature =|cfg\(test\)|cfg\(all\(test")


class Items:
    """The items of one crate: by name their kind, and by type their functions."""

    def __init__(self, folder):
        self.kinds, self.functions, self.files = {}, {}, {}
        for path in sorted((folder / "src").rglob("*.rs")):
            if not path.name == "internals.rs":
                self.read(path, path.read_text().splitlines())

    def read(self, path, lines):
        owner, of_trait, attributes = None, False, ""
        for at, line in enumerate(lines):
            stripped = line.strip()
            if stripped == "mod tests {" and "cfg(test)" in attributes:
                return
            if stripped.startswith(("#[", "///")):
                attributes += stripped if stripped.startswith("#[") else ""
                continue
            hidden = bool(HIDING.search(attributes))
            near = lines[max(0, at - 12):at]
            declared = "bitflags! {" in near or "part_of! {" in near
            item = ITEM.match(line) or (ITEM.match(stripped) if declared else None)
            if item and not hidden:
                # One name may be two items (a type and a constructor); the first is the type.
                self.kinds.setdefault(item.group(2), item.group(1).split()[-1])
                self.files.setdefault(item.group(2), path)
            if line.startswith(("impl", "pub trait", "pub unsafe trait")):
                of_trait = "trait " in line.split("{")[0].split("<")[0]
                head = re.sub(r"^impl(<.*?>)? ", "", line) if not of_trait else line.split("trait ")[1]
                owner = None if " for " in line and not of_trait else re.match(r"\w+", head).group()
                if hidden:
                    owner = None
            elif line == "}":
                owner = None
            function = FUNCTION.match(line)
            if function and owner and not hidden and (of_trait or function.group(1)):
                self.functions.setdefault(owner, []).append(function.group(2))
            attributes = ""


def uses(text):
    """The names that `text` exports of other crates, with the crate, and those of its own modules."""
    for attributes, path, names in re.findall(r"((?:#\[[^\n]*\n)*)pub use ([\w:]+?)(?:::\{([^}]*)\})?;", text):
        if "doc(hidden)" in attributes:
            continue
        if not names:
            path, _, names = path.rpartition("::")
        yield path, re.findall(r"\w+", names)


def find(crates, crate, name):
    """The crate that defines what `crate` exports as `name`."""
    if name in crates[crate].kinds:
        return crate
    text = (ROOT / "crates" / crate / "src/lib.rs").read_text()
    for path, names in uses(text):
        below = path.split("::")[0].removeprefix("quire_").replace("_", "-")
        if name in names and below in crates:
            return find(crates, below, name)
    return crate if re.search(r"^[A-Z_0-9]+$", name) else None


def entry(crates, crate, name):
    """An item with its kind and its functions."""
    return name, crates[crate].kinds.get(name), crates[crate].functions.get(name, [])


def listed():
    """By module, each item with its functions."""
    crates = {path.parent.name: Items(path.parent) for path in ROOT.glob("crates/*/Cargo.toml")}
    own = crates["mm"]
    lib = (FACADE / "lib.rs").read_text()
    modules = {"": [entry(crates, "mm", name) for _, names in uses(lib) for name in names]}
    for hidden, module in re.findall(r"((?:#\[[^\n]*\n)*)pub mod (\w+);", lib):
        if "doc(hidden)" in hidden:
            continue
        path = FACADE / f"{module}.rs"
        path = path if path.exists() else FACADE / module / "mod.rs"
        items = []
        for source, names in uses(path.read_text()):
            first = source.split("::")[0]
            for name in names:
                crate = find(crates, first.removeprefix("quire_").replace("_", "-"), name) if first.startswith("quire_") else "mm"
                if crate is None:
                    # What a macro declares is a type without functions of its own, or with those it declares.
                    items.append((name, "struct", []))
                elif name in crates[crate].kinds:
                    items.append(entry(crates, crate, name))
        items += [entry(crates, "mm", name) for name in own.kinds if own.files[name] == path]
        modules[module] = items
    return modules


def text(modules):
    count = sum(1 + len(functions) * (kind != "trait") for items in modules.values() for _, kind, functions in items)
    out = [
        "# What an embedder sees",
        "",
        f"The public types and functions of quire-mm: {count}, of at most {MOST}. Written by `scripts/public-items.py`,",
        "which CI holds against the sources. `cargo doc -p quire-mm --no-deps --open` has the pages.",
    ]
    for module, items in modules.items():
        path = f"quire_mm::{module}" if module else "quire_mm"
        out += ["", f"## `{path}`", "", "| item | functions |", "|---|---|"]
        for name, _, functions in sorted(items, key=lambda item: item[0].lower()):
            listed = ", ".join(f"`{function}`" for function in functions)
            out.append(f"| `{name}` | {listed} |".replace("|  |", "| |"))
    return count, "\n".join(out) + "\n"


def main():
    count, wanted = text(listed())
    if count > MOST:
        sys.exit(f"public-items: {count} public items, more than {MOST}")
    if "--check" not in sys.argv:
        LIST.write_text(wanted)
    elif LIST.read_text() != wanted:
        sys.exit(f"public-items: {LIST.relative_to(ROOT)} is not current: run scripts/public-items.py")
    print(f"public-items: {count} items")


if __name__ == "__main__":
    main()

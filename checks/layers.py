"""Arrows between crates and between the modules of a crate, from the code itself: the work of checks/layers.sh."""

import sys
from pathlib import Path

from modules import HEADING, Crate, crate_arrows
from planted_arrows import PLANTED

# A type with more functions, or in more files, is several.
MOST_FUNCTIONS, MOST_FILES = 50, 8


def read(root):
    folders = sorted([*root.glob("crates/*"), *root.glob("tools/*")])
    return [Crate(folder, {}) for folder in folders if (folder / "src").is_dir()]


def function_names(crates):
    return {crate.folder: {name for name, *_ in crate.inherent()} for crate in crates}


def check(root, crates, planted, names):
    """What is wrong with `crates`, a line each. `names` are the functions of each crate's types."""
    bad = list(crate_arrows(root, planted))
    for crate in crates:
        elsewhere = set().union(*(found for folder, found in names.items() if folder != crate.folder))
        bad += modules_of(root, crate, elsewhere) + types_of(root, crate)
    return bad


def modules_of(root, crate, elsewhere):
    """What is wrong with the arrows between the modules of a crate."""
    place = str(crate.folder.relative_to(root))
    arrows = list(crate.arrows(crate.method_modules(elsewhere)))
    of_root = [arrow for arrow in arrows if not arrow.parent]
    up = crate.upward(of_root) if crate.order else []
    circles = crate.circles([arrow for arrow in arrows if arrow.parent])
    bad = [f"{arrow.path.relative_to(root)}:{arrow.line}: {arrow.text()}, against the order of modules" for arrow in up]
    bad += [f"{arrow.path.relative_to(root)}:{arrow.line}: {arrow.text()}, in a circle" for arrow in circles]
    bad += [f"{path.relative_to(root)}:{line}: impl {name} stands outside of the module of {name}"
            for name, path, line in crate.stray_impls()]
    missing = [name for name in crate.modules if name not in crate.order]
    gone = [name for name in crate.order if name not in crate.modules]
    if crate.order and (missing or gone):
        bad.append(f"{place}/src/lib.rs: the list of modules lacks {missing}, has {gone} too many")
    if not crate.order and len(crate.modules) > 1:
        bad.append(f"{place}/src/lib.rs has no list of modules ({HEADING})")
    return bad


def types_of(root, crate):
    """The types of a crate in crates/ that are several."""
    if crate.folder.parent.name != "crates":
        return []
    return [f"{crate.folder.relative_to(root)}: {name} has {functions} functions in {files} files, "
            f"at most {MOST_FUNCTIONS} in {MOST_FILES} may be"
            for name, (functions, files) in sorted(crate.sizes().items())
            if functions > MOST_FUNCTIONS or files > MOST_FILES]


def plant(root, names):
    """1 if one of the planted arrows is not found, which is printed."""
    missed = 0
    for one in PLANTED:
        planted = {root / name: f"\n{text}\n" for name, text in one.items()}
        changed = [Crate(folder, planted) for folder in names if any(folder in path.parents for path in planted)]
        if not check(root, changed, planted, {**names, **function_names(changed)}):
            print(f"not found: {one}", file=sys.stderr)
            missed = 1
    return missed


def main(root, words):
    crates = read(root)
    names = function_names(crates)
    wrong = check(root, crates, {}, names)
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong or "--plant" not in words:
        return 1 if wrong else 0
    return plant(root, names)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))

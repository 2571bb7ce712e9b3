"""Arrows between crates and between the modules of a crate, from the code itself: the work of checks/layers.sh."""

import sys
from pathlib import Path

from modules import HEADING, Crate, crate_arrows
from planted_arrows import PLANTED

# A type with more functions, or in more files, is several.
MOST_FUNCTIONS, MOST_FILES = 50, 8

# Crates that are not in order yet, with what may be there: arrows that go up (inside of circles, where lib.rs lists no
# order), inherent impl blocks out of place, arrows inside of circles of submodules; an arrow is a pair of modules,
# however often it is used. The numbers only fall; a crate with none leaves the table.
BOUNDS = {
    "tools/cli": (2, 0, 4),
}
# Types that are several, with their functions and files. The numbers only fall.
LARGE = {}


def read(root):
    folders = sorted([*root.glob("crates/*"), *root.glob("tools/*")])
    return [Crate(folder, {}) for folder in folders if (folder / "src").is_dir()]


def function_names(crates):
    return {crate.folder: {name for name, *_ in crate.inherent()} for crate in crates}


def pairs(arrows):
    """How many modules use another of these."""
    return len({(arrow.parent, arrow.here, arrow.there) for arrow in arrows})


def check(root, crates, planted, names, listing):
    """What is wrong with `crates`, a line each; with `listing` also what the bounds allow. `names` are the functions of each
    crate's types."""
    bad = list(crate_arrows(root, planted))
    for crate in crates:
        elsewhere = set().union(*(found for folder, found in names.items() if folder != crate.folder))
        bad += modules_of(root, crate, elsewhere, listing) + types_of(root, crate)
    return bad


def modules_of(root, crate, elsewhere, listing):
    """What is wrong with the arrows between the modules of a crate."""
    bad, place = [], str(crate.folder.relative_to(root))
    arrows = list(crate.arrows(crate.method_modules(elsewhere)))
    of_root = [arrow for arrow in arrows if not arrow.parent]
    up = list(crate.upward(of_root)) if crate.order else crate.circles(of_root)
    impls, circles = list(crate.stray_impls()), crate.circles([arrow for arrow in arrows if arrow.parent])
    found, bound = (pairs(up), len(impls), pairs(circles)), BOUNDS.get(place, (0, 0, 0))
    if listing or found != bound:
        bad += [f"{arrow.path.relative_to(root)}:{arrow.line}: {arrow.text()}" for arrow in [*up, *circles]]
        bad += [f"{path.relative_to(root)}:{line}: impl {name} stands outside of the module of {name}"
                for name, path, line in impls]
    if found != bound:
        more = any(have > may for have, may in zip(found, bound))
        word = "more" if more else "fewer: lower its bound in checks/layers.py"
        bad.append(f"{place}: {found[0]} arrows up, {found[1]} impl blocks out of place, {found[2]} arrows in circles of "
                   f"submodules, bound {bound}: {word}")
    missing = [name for name in crate.modules if name not in crate.order]
    gone = [name for name in crate.order if name not in crate.modules]
    if crate.order and (missing or gone):
        bad.append(f"{place}/src/lib.rs: the list of modules lacks {missing}, has {gone} too many")
    if place.startswith("crates/") and not crate.order and len(crate.modules) > 1:
        bad.append(f"{place}/src/lib.rs has no list of modules ({HEADING})")
    return bad


def types_of(root, crate):
    """The types of a crate in crates/ that are several, beyond what they may be."""
    if crate.folder.parent.name != "crates":
        return []
    bad, place, sizes = [], crate.folder.relative_to(root), crate.sizes()
    for name, size in sorted(sizes.items()):
        bound = LARGE.get(f"{crate.name}::{name}")
        most = bound or (MOST_FUNCTIONS, MOST_FILES)
        if size[0] > most[0] or size[1] > most[1] or bound and size != bound:
            bad.append(f"{place}: {name} has {size[0]} functions in {size[1]} files, bound {most}")
    for name in LARGE:
        crate_name, _, type_name = name.partition("::")
        if crate_name == crate.name and type_name not in sizes:
            bad.append(f"{place}: {type_name} is gone: so must be its bound in checks/layers.py")
    return bad


def plant(root, names):
    """1 if one of the planted arrows is not found, which is printed."""
    missed = 0
    for one in PLANTED:
        planted = {root / name: f"\n{text}\n" for name, text in one.items()}
        changed = [Crate(folder, planted) for folder in names if any(folder in path.parents for path in planted)]
        if not check(root, changed, planted, {**names, **function_names(changed)}, False):
            print(f"not found: {one}", file=sys.stderr)
            missed = 1
    return missed


def main(root, words):
    crates = read(root)
    names = function_names(crates)
    wrong = check(root, crates, {}, names, "--list" in words)
    for line in wrong:
        print(line, file=sys.stderr)
    if "--list" in words:
        return 0
    if wrong or "--plant" not in words:
        return 1 if wrong else 0
    return plant(root, names)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))

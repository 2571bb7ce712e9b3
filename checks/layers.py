"""Arrows between crates and between the modules of a crate, from the code itself: the work of checks/layers.sh."""

import re
import sys
from pathlib import Path

# Crates whose modules are not in order yet, with what may be there: arrows that go up, and inherent impl blocks that
# stand neither in the module of their type nor below it. The numbers only fall; 0 0 leaves the table.
BOUNDS = {
}

HEADING = "# Modules, lowest first"


RAW = re.compile(r'b?r(#*)"')
CHAR = re.compile(r"'(\\.[^']*|[^'\\])'")
PLAIN = re.compile(r"[^/\"'br]+")


def stripped(text):
    """The text without comments and the contents of strings; newlines stay, so that line numbers do."""
    out, i, n = [], 0, len(text)
    while i < n:
        if (plain := PLAIN.match(text, i)):
            out.append(plain.group())
            i = plain.end()
            continue
        two = text[i:i + 2]
        if two == "//":
            end = text.find("\n", i)
            i = n if end < 0 else end
        elif two == "/*":
            depth, j = 1, i + 2
            while j < n and depth:
                if text.startswith("/*", j):
                    depth, j = depth + 1, j + 2
                elif text.startswith("*/", j):
                    depth, j = depth - 1, j + 2
                else:
                    j += 1
            out.append("\n" * text.count("\n", i, j))
            i = j
        elif (raw := RAW.match(text, i)) and not (i and (text[i - 1].isalnum() or text[i - 1] == "_")):
            end = text.find('"' + raw.group(1), raw.end())
            j = n if end < 0 else end + 1 + len(raw.group(1))
            out.append('""' + "\n" * text.count("\n", i, j))
            i = j
        elif text[i] == '"':
            j = i + 1
            while j < n and text[j] != '"':
                j += 2 if text[j] == "\\" else 1
            out.append('""' + "\n" * text.count("\n", i, j))
            i = j + 1
        elif (char := CHAR.match(text, i)):
            out.append("' '")
            i = char.end()
        else:
            out.append(text[i])
            i += 1
    return "".join(out)


def without_tests(text):
    """The stripped text without items under cfg(test), cfg(all(test, ..)) and cfg(any(test, ..)) and models."""
    attribute = re.compile(r"#\[cfg\((?:test|all\((?:test|loom|shuttle)[^\]]*|loom|shuttle)\)*\]")
    while found := attribute.search(text):
        i = found.end()
        # Further attributes, then the item up to its end.
        depth = 0
        while i < len(text):
            c = text[i]
            if c in "([{":
                depth += 1
            elif c in ")]}":
                depth -= 1
                if depth == 0 and c == "}":
                    i += 1
                    break
            elif c == ";" and depth == 0:
                i += 1
                break
            i += 1
        cut = text[found.start():i]
        text = text[:found.start()] + "\n" * cut.count("\n") + text[i:]
    return text


def test_files(root, files):
    """Files that are modules under cfg(test) or cfg(loom), by the declaration in their parent."""
    tests = set()
    for path in files:
        text = stripped(path.read_text())
        base = path.parent if path.name in ("lib.rs", "mod.rs") else path.with_suffix("")
        for found in re.finditer(r"((?:#\[[^\]]*\]\s*)*)(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", text):
            if re.search(r"cfg\((?:all\()?(?:test|loom|shuttle)", found.group(1)):
                tests.update([base / f"{found.group(2)}.rs"])
                tests.update((base / found.group(2)).rglob("*.rs"))
    return tests


def use_paths(tree):
    """The paths of a use tree: `a::{b, c::d as e}` has a::b and a::c::d."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        return [re.split(r"\s+as\s+", tree)[0].replace(" ", "").replace("\n", "")]
    prefix, inner = tree[:brace].replace(" ", "").replace("\n", ""), tree[brace + 1:tree.rfind("}")]
    parts, depth, start = [], 0, 0
    for i, c in enumerate(inner):
        depth += (c == "{") - (c == "}")
        if c == "," and depth == 0:
            parts.append(inner[start:i])
            start = i + 1
    parts.append(inner[start:])
    return [prefix + path for part in parts if part.strip() for path in use_paths(part)]


class Crate:
    def __init__(self, folder):
        self.folder = folder
        self.name = folder.name
        self.source = folder / "src"
        files = sorted(self.source.rglob("*.rs"))
        tests = test_files(self.source, files)
        self.texts = {}
        for path in files:
            if path not in tests:
                self.texts[path] = without_tests(stripped(path.read_text()))
        self.modules = sorted({self.top(path) for path in self.texts} - {None})
        self.exports = self.reexports()
        self.order = self.declared()

    def module(self, path):
        """The module path of a file, as a tuple."""
        parts = list(path.relative_to(self.source).with_suffix("").parts)
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        return tuple(parts)

    def top(self, path):
        module = self.module(path)
        return module[0] if module else None

    def reexports(self):
        """What lib.rs exports: the item, and the module that it comes from."""
        exports = {}
        text = self.texts.get(self.source / "lib.rs", "")
        for found in re.finditer(r"\buse\s+([^;]+);", text):
            for path in use_paths(found.group(1)):
                parts = re.sub(r"^(crate|self)::", "", path).split("::")
                if parts[0] in self.modules and len(parts) > 1:
                    exports[parts[-1]] = parts[0]
        return exports

    def declared(self):
        """The order of the modules that lib.rs tells: for each its place."""
        lib = self.source / "lib.rs"
        lines = lib.read_text().splitlines() if lib.exists() else []
        place, order = 0, {}
        inside = False
        for line in lines:
            if line.startswith("//! #"):
                inside = line == f"//! {HEADING}"
            elif inside and line.startswith("//! - `"):
                place += 1
                for name in re.findall(r"`(\w+)`", line.split(":")[0]):
                    order[name] = place
        return order

    def target(self, module, path):
        """The top-level module that a path leads to, or None for another crate or the root itself."""
        parts = path.split("::")
        at = list(module)
        if parts[0] == "crate":
            at, parts = [], parts[1:]
        elif parts[0] == "super":
            while parts and parts[0] == "super":
                at, parts = at[:-1], parts[1:]
        elif parts[0] == "self":
            parts = parts[1:]
        elif not (not module and parts[0] in self.modules):
            return None
        if at:
            return at[0]
        if not parts:
            return None
        return parts[0] if parts[0] in self.modules else self.exports.get(parts[0])

    def arrows(self):
        """Each use of one top-level module by another: (from, to, file, line, path)."""
        for path, text in self.texts.items():
            module = self.module(path)
            if not module:
                continue
            seen = []
            for found in re.finditer(r"\buse\s+([^;]+);", text):
                for used in use_paths(found.group(1)):
                    seen.append((found.start(), used))
            bare = re.sub(r"\buse\s+[^;]+;", lambda m: " " * len(m.group()), text)
            for found in re.finditer(r"\b(?:crate|super)(?:\s*::\s*\w+)+", bare):
                seen.append((found.start(), re.sub(r"\s", "", found.group())))
            for start, used in seen:
                target = self.target(module, used)
                if target and target != module[0]:
                    yield module[0], target, path, text.count("\n", 0, start) + 1, used

    def types(self):
        """Where each type of the crate is defined."""
        types = {}
        for path, text in self.texts.items():
            for found in re.finditer(r"\b(?:struct|enum|union)\s+(\w+)", text):
                types.setdefault(found.group(1), set()).add(self.module(path))
        return types

    def stray_impls(self):
        """Inherent impl blocks of a type of another module: (type, file, line)."""
        types = self.types()
        for path, text in self.texts.items():
            module = self.module(path)
            for found in re.finditer(r"(?m)^\s*(?:unsafe\s+)?impl\b([^{;]*)\{", text):
                head = found.group(1)
                depth, start = 0, 0
                for i, c in enumerate(head):
                    depth += (c == "<") - (c == ">" and head[i - 1] != "-")
                    if c not in "<>" and depth == 0 and not c.isspace():
                        start = i
                        break
                body = head[start:]
                flat, depth = "", 0
                for i, c in enumerate(body):
                    depth += (c == "<") - (c == ">" and body[i - 1] != "-")
                    flat += c if depth == 0 else ""
                if re.search(r"\bfor\b", flat.split("where")[0]):
                    continue
                name = re.match(r"\s*(?:\w+\s*::\s*)*(\w+)", flat)
                homes = types.get(name.group(1)) if name else None
                if homes and not any(module[:len(home)] == home for home in homes):
                    yield name.group(1), path, text.count("\n", 0, found.start()) + 1

    def upward(self):
        """Arrows that go up, and those of modules that lib.rs does not name."""
        for here, there, path, line, used in self.arrows():
            if self.order.get(here, 0) <= self.order.get(there, 0):
                yield here, there, path, line, used

    def cycles(self):
        """Arrows inside of a cycle of modules, where there is no order to hold them against."""
        arrows = list(self.arrows())
        reach = {module: {b for a, b, *_ in arrows if a == module} for module in self.modules}
        changed = True
        while changed:
            changed = False
            for module in self.modules:
                more = set().union(*(reach[b] for b in reach[module])) if reach[module] else set()
                if not more <= reach[module]:
                    reach[module] |= more
                    changed = True
        return [arrow for arrow in arrows if arrow[0] in reach[arrow[1]]]


def crate_arrows(root):
    """Dependencies of crates that docs/architecture.md does not put above them."""
    text = (root / "docs/architecture.md").read_text()
    order = re.findall(r"^- \*\*(quire-[\w-]+)\*\*", text, re.M)
    place = {name: at for at, name in enumerate(order)}
    for manifest in sorted([*root.glob("crates/*/Cargo.toml"), *root.glob("tools/*/Cargo.toml")]):
        lines = manifest.read_text()
        name = re.search(r'^name = "([\w-]+)"', lines, re.M).group(1)
        if name not in place:
            yield f"{manifest.relative_to(root)}: docs/architecture.md does not list {name}"
            continue
        section = ""
        for line in lines.splitlines():
            if line.startswith("["):
                section = line
            elif section.endswith("dependencies]") and "dev-" not in section and (dep := re.match(r"(quire-[\w-]+)", line)):
                if place.get(dep.group(1), len(order)) >= place[name]:
                    yield f"{manifest.relative_to(root)}: {name} uses {dep.group(1)}, which docs/architecture.md lists below it"


def main(root, listing):
    bad = []
    for line in crate_arrows(root):
        bad.append(line)
    for folder in sorted(root.glob("crates/*")):
        crate = Crate(folder)
        shown = lambda path: path.relative_to(root)
        missing = [m for m in crate.modules if m not in crate.order]
        gone = [m for m in crate.order if m not in crate.modules]
        arrows = list(crate.upward()) if crate.order else crate.cycles()
        impls = list(crate.stray_impls())
        found = (len(arrows), len(impls))
        for here, there, path, line, used in arrows if listing or found != BOUNDS.get(crate.name, (0, 0)) else []:
            print(f"{shown(path)}:{line}: {here} uses {there} ({used})")
        for name, path, line in impls if listing or found != BOUNDS.get(crate.name, (0, 0)) else []:
            print(f"{shown(path)}:{line}: impl {name} stands outside of the module of {name}")
        if crate.order and (missing or gone):
            bad.append(f"crates/{crate.name}/src/lib.rs: the list of modules lacks {missing}, has {gone} too many")
        if not crate.order and len(crate.modules) > 1 and crate.name not in BOUNDS:
            bad.append(f"crates/{crate.name}/src/lib.rs has no list of modules ({HEADING})")
        bound = BOUNDS.get(crate.name, (0, 0))
        if found != bound:
            word = "more" if found[0] > bound[0] or found[1] > bound[1] else "fewer: lower its bound in checks/layers.py"
            bad.append(f"crates/{crate.name}: {found[0]} arrows up and {found[1]} impl blocks, bound {bound}: {word}")
    for line in bad:
        print(line, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), "--list" in sys.argv[2:]))

"""The modules of a crate: arrows between them, and where the methods of each type stand."""

import re
from pathlib import Path

import rust_source

HEADING = "# Modules, lowest first"

# Methods of the standard library's types that crates here name their own methods after: a call of one says nothing.
STANDARD = set("""
    abs all and and_then any append as_bytes as_mut as_ptr as_ref as_slice as_str back by_ref call chain checked_add
    checked_sub chunks clamp clear clone cloned cmp collect compare_exchange compare_exchange_weak contains
    contains_key copied count dedup deref drain drop elapsed end entry enumerate eq err expect extend fetch_add
    fetch_and fetch_or fetch_sub fetch_update field filter find finish first flatten flush fmt fold for_each from front get
    get_mut get_or_insert_with hash id index insert inspect into into_inner into_iter is_empty is_none is_ok is_some
    is_some_and iter iter_mut join keys kill last leading_zeros len load lock map map_err map_or max max_by_key min
    min_by_key name new next next_back nth ok or or_else or_insert_with partition peek pop pop_back pop_front position
    product push push_back push_front range read record remove replace reserve resize retain rev seek send set shrink
    size skip sort split split_at spawn start starts_with step_by store sum swap take then to_owned to_string to_vec
    trailing_zeros truncate try_from try_into try_lock unwrap unwrap_or update values wait wake with with_capacity
    wrapping_add write zip
""".split())


def module_texts(root, planted):
    """The files of a crate, stripped, without those that are modules under cfg(test) or cfg(loom) by the declaration in
    their parent."""
    files = sorted({*root.rglob("*.rs"), *(path for path in planted if path.suffix == ".rs" and root in path.parents)})
    read = lambda path: path.read_text() if path.exists() else ""
    texts = {path: rust_source.stripped(read(path) + planted.get(path, "")) for path in files}
    tests = set()
    for path, text in texts.items():
        base = path.parent if path.name in ("lib.rs", "main.rs", "mod.rs") else path.with_suffix("")
        for found in re.finditer(r"((?:#\[[^\]]*\]\s*)*)(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", text):
            if re.search(r"cfg\((?:all\()?(?:test|loom|shuttle)", found.group(1)):
                tests.add(base / f"{found.group(2)}.rs")
                tests.update((base / found.group(2)).rglob("*.rs"))
    return {path: text for path, text in texts.items() if path not in tests}


class Arrow:
    """A use of one module by another: both below one parent, or `there` is empty for items of lib.rs."""

    def __init__(self, parent, here, there, path, line, used):
        self.parent, self.here, self.there = parent, here, there
        self.path, self.line, self.used = path, line, used

    def text(self):
        there = "::".join((*self.parent, self.there)) if self.there else "lib.rs"
        return f"{'::'.join((*self.parent, self.here))} uses {there} ({self.used})"


class Crate:
    """A crate's source without its tests. Modules are tuples of names; the root is the empty one."""

    def __init__(self, folder, planted):
        self.folder, self.name, self.source = folder, folder.name, folder / "src"
        self.texts, self.blocks = {}, {}
        for path, stripped in module_texts(self.source, planted).items():
            text = rust_source.without_tests(stripped)
            self.texts[path] = text
            self.blocks[path] = list(rust_source.blocks(text))
        self.root = next((self.source / name for name in ("lib.rs", "main.rs") if self.source / name in self.texts), None)
        self.all = {self.module(path) for path in self.texts}
        self.modules = sorted({module[0] for module in self.all if module})
        self.exports = self.reexports()
        self.order = self.declared()
        self.items = set(re.findall(
            r"(?m)^(?:pub(?:\([^)]*\))?\s+)?(?:unsafe\s+|const\s+|extern\s+\"\"\s+)*"
            r"(?:struct|enum|union|trait|type|fn|const|static|macro_rules!)\s+(\w+)", self.texts.get(self.root, "")))

    def module(self, path):
        """The module of a file."""
        parts = list(path.relative_to(self.source).with_suffix("").parts)
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        return tuple(parts)

    def reexports(self):
        """What a module exports of those below it: (module, item), and the module that it comes from."""
        exports = {}
        for path, text in self.texts.items():
            module = self.module(path)
            for found in re.finditer(r"\buse\s+([^;]+);", text):
                for used in rust_source.use_paths(found.group(1)):
                    parts = used.split("::")
                    at = list({"crate": (), "super": module[:-1]}.get(parts[0], module))
                    parts = parts[1:] if parts[0] in ("crate", "self", "super") else parts
                    while len(parts) > 1 and (*at, parts[0]) in self.all:
                        at.append(parts.pop(0))
                    if parts and len(at) > len(module) and tuple(at[:len(module)]) == module:
                        exports[module, parts[-1]] = tuple(at)
        return exports

    def declared(self):
        """The order of the modules that lib.rs tells: for each its place."""
        lines = self.root.read_text().splitlines() if self.root else []
        place, order, inside = 0, {}, False
        for line in lines:
            if line.startswith("//! #"):
                inside = line == f"//! {HEADING}"
            elif inside and line.startswith("//! - `"):
                place += 1
                for name in re.findall(r"`(\w+)`", line.split(":")[0]):
                    order[name] = place
        return order

    def target(self, module, path):
        """The module whose item a path names; None for another crate."""
        parts = path.split("::")
        at = list(module)
        if parts[0] == "crate":
            at, parts = [], parts[1:]
        elif parts[0] == "super":
            while parts and parts[0] == "super":
                at, parts = at[:-1], parts[1:]
        elif parts[0] == "self":
            parts = parts[1:]
        elif (*module, parts[0]) not in self.all:
            return None
        while parts and (*at, parts[0]) in self.all:
            at.append(parts.pop(0))
        if parts and (from_ := self.exports.get((tuple(at), parts[0]))):
            return from_
        if not at and not (parts and parts[0] in self.items):
            return None
        return tuple(at)

    def arrow(self, module, target, path, start, used):
        """The arrow from `module` to an item of `target`; None within one, or between a module and those around it."""
        shared = 0
        while shared < min(len(module), len(target)) and module[shared] == target[shared]:
            shared += 1
        if shared == len(module) or (shared == len(target) and target):
            return None
        there = target[shared] if target else ""
        line = self.texts[path].count("\n", 0, start) + 1
        return Arrow(module[:shared], module[shared], there, path, line, used)

    def arrows(self, methods):
        """Each use of one module by another, by a path or by a method whose module is known by its name alone."""
        for path, text in self.texts.items():
            module = self.module(path)
            if not module:
                continue
            seen = []
            for found in re.finditer(r"\buse\s+([^;]+);", text):
                for used in rust_source.use_paths(found.group(1)):
                    seen.append((found.start(), used, self.target(module, used)))
            bare = re.sub(r"\buse\s+[^;]+;", lambda m: re.sub(r"[^\n]", " ", m.group()), text)
            for found in re.finditer(r"\b(?:crate|super)(?:\s*::\s*\w+)+", bare):
                used = re.sub(r"\s", "", found.group())
                seen.append((found.start(), used, self.target(module, used)))
            for found in re.finditer(r"(?:\.\s*|\bSelf::)([a-z]\w*)\s*(?:::\s*<[^(;{]*>\s*)?\(", bare):
                if (target := methods.get(found.group(1))) is not None:
                    seen.append((found.start(), f".{found.group(1)}()", target))
            for start, used, target in seen:
                if target is not None and (arrow := self.arrow(module, target, path, start, used)):
                    yield arrow

    def inherent(self):
        """The functions of inherent impl blocks: (name, whether it is a method, type, module, file)."""
        for path, found in self.blocks.items():
            for block in found:
                if block.subject and not block.trait:
                    for name, is_method, _ in block.functions():
                        yield name, is_method, block.subject, self.module(path), path

    def method_modules(self, elsewhere):
        """The module of each method whose name stands for one module; `elsewhere` are names of other crates."""
        modules, methods = {}, set()
        for name, is_method, _, module, _ in self.inherent():
            modules.setdefault(name, set()).add(module)
            methods |= {name} if is_method else set()
        of_traits = {name for found in self.blocks.values() for block in found if block.trait
                     for name, _, _ in block.functions()}
        ambiguous = elsewhere | of_traits | STANDARD
        return {name: next(iter(found)) for name, found in modules.items()
                if len(found) == 1 and name in methods - ambiguous}

    def types(self):
        """Where each type of the crate is defined."""
        types = {}
        for path, text in self.texts.items():
            for found in re.finditer(r"\b(?:struct|enum|union)\s+(\w+)", text):
                types.setdefault(found.group(1), set()).add(self.module(path))
        return types

    def stray_impls(self):
        """Inherent impl blocks that stand neither in the module of their type nor below it: (type, file, line). Nothing
        but lib.rs itself is the module of a type of lib.rs."""
        types = self.types()
        for path, found in self.blocks.items():
            module = self.module(path)
            for block in found:
                homes = types.get(block.subject) if not block.trait else None
                if homes and not any(module[:len(home)] == home and (home or not module) for home in homes):
                    yield block.subject, path, self.texts[path].count("\n", 0, block.start) + 1

    def sizes(self):
        """For each type: its functions and the files that they stand in. Traits of the crate that one type alone
        implements count as that type's, and the target of a Deref as well."""
        functions, files, derefs, traits = {}, {}, {}, {}
        own = {block.trait for found in self.blocks.values() for block in found if block.trait and not block.subject}
        for path, found in self.blocks.items():
            for block in found:
                if not block.subject:
                    continue
                names = {name for name, _, _ in block.functions()}
                if not block.trait:
                    functions.setdefault(block.subject, []).extend(sorted(names))
                    files.setdefault(block.subject, set()).add(path)
                elif block.trait == "Deref" and block.target:
                    derefs[block.subject] = block.target
                elif block.trait in own:
                    traits.setdefault(block.trait, []).append((block.subject, names, path))
        for implementers in traits.values():
            if len({subject for subject, _, _ in implementers}) == 1:
                for subject, names, path in implementers:
                    functions.setdefault(subject, []).extend(sorted(names))
                    files.setdefault(subject, set()).add(path)
        for subject, target in derefs.items():
            if subject != target and target in functions:
                functions.setdefault(subject, []).extend(functions[target])
                files.setdefault(subject, set()).update(files[target])
        return {name: (len(functions[name]), len(files[name])) for name in functions}

    def upward(self, arrows):
        """Arrows between modules of the root that go up, and those of modules that lib.rs does not name."""
        for arrow in arrows:
            if not arrow.parent and (not arrow.there
                                     or self.order.get(arrow.here, 0) <= self.order.get(arrow.there, 0)):
                yield arrow

    @staticmethod
    def circles(arrows):
        """Arrows inside of a circle of modules with one parent."""
        uses = {}
        for arrow in arrows:
            if arrow.there:
                uses.setdefault((arrow.parent, arrow.here), set()).add((arrow.parent, arrow.there))
        reach = {module: set(used) for module, used in uses.items()}
        changed = True
        while changed:
            changed = False
            for module, found in reach.items():
                more = set().union(*(reach.get(other, set()) for other in found)) - found
                if more:
                    found |= more
                    changed = True
        return [arrow for arrow in arrows if arrow.there
                and (arrow.parent, arrow.here) in reach.get((arrow.parent, arrow.there), set())]


def crate_arrows(root, planted):
    """Dependencies of crates that docs/architecture.md does not put above them."""
    text = (root / "docs/architecture.md").read_text()
    order = re.findall(r"^- \*\*(quire-[\w-]+)\*\*", text, re.M)
    place = {name: at for at, name in enumerate(order)}
    for manifest in sorted([*root.glob("crates/*/Cargo.toml"), *root.glob("tools/*/Cargo.toml")]):
        lines = manifest.read_text() + planted.get(manifest, "")
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

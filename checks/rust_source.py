"""Rust source as text: without comments, contents of strings and tests; its use trees, impl blocks and functions."""

import re

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


def block_end(text, opening):
    """The place behind the brace that closes the one at `opening`."""
    depth = 0
    for i in range(opening, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i + 1
    return len(text)


def after_generics(head):
    """What follows `<...>` at the start of an impl's head."""
    depth = 0
    for i, c in enumerate(head):
        depth += (c == "<") - (c == ">" and head[i - 1] != "-")
        if c not in "<>" and depth == 0 and not c.isspace():
            return head[i:]
    return ""


def without_generics(text):
    """The text without what stands between angle brackets."""
    flat, depth = "", 0
    for i, c in enumerate(text):
        depth -= c == ">" and text[i - 1] != "-"
        flat += c if depth == 0 and c not in "<>" else ""
        depth += c == "<"
    return flat


class Block:
    """An impl block or a trait: the trait, the type (each a name or None), and its text."""

    def __init__(self, trait, subject, start, text, target=None):
        self.trait, self.subject, self.start, self.text, self.target = trait, subject, start, text, target

    def functions(self):
        """The functions of the block itself: (name, whether it is a method, place in the file)."""
        depth = 0
        for found in re.finditer(r"[{}]|\bfn\s+(\w+)\s*(?:<[^(]*)?\(([^,)]*)", self.text):
            if found.group() in "{}":
                depth += 1 if found.group() == "{" else -1
            elif depth == 1:
                yield found.group(1), bool(re.search(r"\bself\b", found.group(2))), self.start + found.start()


LAST_NAME = re.compile(r"\s*&?\s*(?:mut\s+|dyn\s+)?(?:\w+\s*::\s*)*(\w+)")


def blocks(text):
    """The impl blocks and traits of a file."""
    for found in re.finditer(r"(?m)^\s*(?:pub(?:\([^)]*\))?\s+)?(?:unsafe\s+)?(impl|trait)\b([^{;]*)\{", text):
        opening = found.end() - 1
        body = text[opening:block_end(text, opening)]
        if found.group(1) == "trait":
            name = re.match(r"\s*(\w+)", found.group(2))
            if name:
                yield Block(name.group(1), None, opening, body)
            continue
        head = without_generics(after_generics(found.group(2))).split(" where")[0].split("\nwhere")[0]
        trait, _, subject = head.rpartition(" for ")
        named = LAST_NAME.match(subject)
        of = LAST_NAME.match(trait.lstrip(" !")) if trait.strip() else None
        target = re.search(r"\btype\s+Target\s*=\s*(?:\w+\s*::\s*)*(\w+)", body)
        if named:
            yield Block(of and of.group(1), named.group(1), opening, body, target and target.group(1))

//! Programs as text: one operation a line, written like a C call.
//!
//! ```text
//! quire-diff 1
//! window 0x7fffc00000
//! file disk
//! # what is behind a number sign is passed over
//! 3 p0 mmap(window+0x1000, 0x2000, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED, -1, 0x0)
//! 4 p0 write(window+0x1008, 0x90)
//! 9 p0 munmap(area3+0x1000, 0x1000)
//! ```

use super::{Argument, Base, Call, MOST_OPS, MOST_PROCESSES, Op, Outcome, Program, Store, Word};
use std::fmt;
use std::str::FromStr;

/// The first line of a program.
pub const HEADING: &str = "quire-diff 1";

/// Why a text is no program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// How bases are written.
const BASES: [(Base, &str); 3] = [(Base::Break, "break"), (Base::Size, "size"), (Base::Data, "data")];

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = BASES.iter().find(|(base, _)| base == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(value) => write!(f, "{value:#x}"),
            Self::Window(offset) => write!(f, "window+{offset:#x}"),
            Self::Area(id, offset) => write!(f, "area{id}+{offset:#x}"),
            Self::Base(base, offset) => write!(f, "{base}+{offset:#x}"),
            Self::Segment(id) => write!(f, "segment{id}"),
        }
    }
}

/// Writes `value` with the names of its bits; what has no name follows as a number.
fn write_bits(f: &mut fmt::Formatter<'_>, value: u64, names: &[(u64, &str)]) -> fmt::Result {
    let mut rest = value;
    let mut between = "";
    for (bit, name) in names.iter().filter(|(bit, _)| value & bit != 0) {
        write!(f, "{between}{name}")?;
        rest &= !bit;
        between = "|";
    }
    if rest != 0 || value == 0 {
        write!(f, "{between}{rest:#x}")?;
    }
    Ok(())
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} p{} {}(", self.id, self.process, self.call.name())?;
        for (at, (kind, word)) in self.call.arguments().iter().zip(self.args).enumerate() {
            f.write_str(if at > 0 { ", " } else { "" })?;
            match (kind, word) {
                (Argument::Bits(names), Word::Exact(value)) => write_bits(f, value, names)?,
                (Argument::Value(names), Word::Exact(value)) => {
                    match names.iter().find(|name| name.0 == value) {
                        Some((_, name)) => f.write_str(name)?,
                        None => write!(f, "{value:#x}")?,
                    }
                }
                (Argument::Signed, Word::Exact(value)) => write!(f, "{}", value.cast_signed())?,
                (_, word) => word.fmt(f)?,
            }
        }
        f.write_str(")")
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(store, _)| store == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for Store {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(store, _)| *store).ok_or_else(|| format!("`{text}` is no store of files: memory, disk"))
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADING}\nwindow {:#x}\nfile {}", self.window, self.store)?;
        for op in &self.ops {
            writeln!(f, "{op}")?;
        }
        Ok(())
    }
}

impl Program {
    /// Shows the program with the outcomes of its operations. Those that were not reached are left
    /// out.
    pub fn with<'p>(&'p self, outcomes: &'p [Outcome]) -> impl fmt::Display + 'p {
        fmt::from_fn(move |f| {
            writeln!(f, "window {:#x}\nfile {}", self.window, self.store)?;
            for (op, outcome) in self.ops.iter().zip(outcomes) {
                writeln!(f, "{op} = {}", outcome.shown(op.call))?;
            }
            Ok(())
        })
    }
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok().or_else(|| text.parse::<i64>().ok().map(i64::cast_unsigned)),
    };
    parsed.ok_or_else(|| format!("`{text}` is no number"))
}

fn word(text: &str, kind: Argument) -> Result<Word, String> {
    if let Argument::Bits(names) | Argument::Value(names) = kind
        && text.starts_with(|first: char| first.is_ascii_uppercase())
    {
        let mut value = 0;
        for part in text.split('|') {
            value |= match names.iter().find(|name| name.1 == part) {
                Some((bits, _)) => *bits,
                None => number(part).map_err(|_| format!("`{part}` is not known here"))?,
            };
        }
        return Ok(Word::Exact(value));
    }
    if let Some(Ok(id)) = text.strip_prefix("segment").map(str::parse::<u32>) {
        return match (id as usize) < MOST_OPS {
            true => Ok(Word::Segment(id)),
            false => Err(format!("there is no operation {id}")),
        };
    }
    let Some((base, offset)) = text.split_once('+') else { return number(text).map(Word::Exact) };
    let offset = number(offset)?;
    if base == "window" {
        return Ok(Word::Window(offset));
    }
    if let Some((base, _)) = BASES.into_iter().find(|(_, name)| *name == base) {
        return Ok(Word::Base(base, offset));
    }
    match base.strip_prefix("area").map(str::parse) {
        Some(Ok(id)) => Ok(Word::Area(id, offset)),
        _ => Err(format!("`{base}` is no base of an address")),
    }
}

fn op(text: &str) -> Result<Op, String> {
    const FORM: &str = "expected `NUMBER pPROCESS call(arguments)`";
    let (head, rest) = text.split_once('(').ok_or(FORM)?;
    let mut words = head.split_whitespace();
    let (Some(id), Some(process), Some(name), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(FORM.to_owned());
    };
    let id = id.parse().map_err(|_| FORM)?;
    let process = process.strip_prefix('p').and_then(|number| number.parse().ok()).ok_or(FORM)?;
    if process >= MOST_PROCESSES || id as usize >= MOST_OPS {
        return Err(format!("there are at most {MOST_PROCESSES} processes and {MOST_OPS} operations"));
    }
    let call = Call::from_name(name).ok_or_else(|| format!("`{name}` is no call that is known here"))?;
    let inner = rest.strip_suffix(')').ok_or("the closing parenthesis is missing")?.trim();
    let given: Vec<&str> =
        if inner.is_empty() { Vec::new() } else { inner.split(',').map(str::trim).collect() };
    let kinds = call.arguments();
    if given.len() != kinds.len() {
        return Err(format!("`{name}` takes {} arguments, not {}", kinds.len(), given.len()));
    }
    let mut args = [Word::Exact(0); 6];
    for ((slot, text), kind) in args.iter_mut().zip(given).zip(kinds) {
        *slot = word(text, *kind)?;
    }
    let is_process =
        |word| matches!(word, Word::Exact(number) if (1..u64::from(MOST_PROCESSES)).contains(&number));
    if call == Call::Fork && !is_process(args[0]) {
        return Err(format!("the new process is one of 1..{MOST_PROCESSES}"));
    }
    Ok(Op { id, process, call, args })
}

impl FromStr for Program {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut lines = text
            .lines()
            .enumerate()
            .map(|(at, line)| (at + 1, line.split('#').next().unwrap_or("").trim()))
            .filter(|(_, line)| !line.is_empty());
        let mut next = |what: &str| {
            lines
                .next()
                .ok_or_else(|| ParseError { line: text.lines().count(), what: format!("{what} is missing") })
        };
        let (line, heading) = next("the heading")?;
        if heading != HEADING {
            return Err(ParseError { line, what: format!("expected the heading `{HEADING}`") });
        }
        let (line, window) = next("the window")?;
        let window = window.strip_prefix("window ").ok_or("expected `window ADDRESS`".to_owned());
        let window = window.and_then(|address| number(address.trim())).and_then(|address| {
            // Where nothing of the process itself can be.
            let fits = address.is_multiple_of(1 << 20) && (1 << 32..1 << 44).contains(&address);
            if fits {
                Ok(address)
            } else {
                Err("the window is a multiple of 1 MiB from 4 GiB to 16 TiB".to_owned())
            }
        });
        let window = window.map_err(|what| ParseError { line, what })?;
        let mut store = Store::Memory;
        let mut ops: Vec<Op> = Vec::new();
        for (line, text) in lines {
            if let Some(name) = text.strip_prefix("file ").filter(|_| ops.is_empty()) {
                store = name.trim().parse().map_err(|what| ParseError { line, what })?;
                continue;
            }
            let op = op(text).map_err(|what| ParseError { line, what })?;
            if ops.last().is_some_and(|last| last.id >= op.id) {
                return Err(ParseError { line, what: "the numbers of operations rise".to_owned() });
            }
            ops.push(op);
        }
        Ok(Self { window, store, ops })
    }
}

//! What an operation of a program comes to, on either side.

use super::Call;
use quire_mm::space::Errno;
use std::fmt;

/// The name of an error number.
pub(crate) fn errno_name(errno: i32) -> Option<&'static str> {
    match errno {
        // No call of the library has these.
        6 => Some("ENXIO"),
        43 => Some("EIDRM"),
        _ => Errno(errno).name(),
    }
}

/// The outcome of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// It was not made: its process or an area that it names does not exist, it would have hit memory that
    /// the oracle needs for itself, or it cannot be compared on this host.
    NotMade,
    /// The value as Linux returns it, failures as small negative numbers.
    Value(i64),
    /// A signal with its code; what was done before it.
    Signal {
        /// The signal's number.
        signal: u32,
        /// Its `si_code`.
        code: u32,
        /// Pages that were written before, for accesses of several.
        done: u64,
    },
    /// The call, or this form of it, is not built in Quire.
    Unsupported,
}

impl Outcome {
    /// In words, as the result of `call`.
    pub fn shown(self, call: Call) -> impl fmt::Display {
        fmt::from_fn(move |f| match self {
            Self::Value(value @ -4095..0) => match errno_name(-value as i32) {
                Some(name) => f.write_str(name),
                None => write!(f, "errno {}", -value),
            },
            Self::Value(value) => write!(f, "{value:#x}"),
            Self::Signal { signal, code, done } => {
                write!(f, "signal {signal} code {code}")?;
                if call == Call::Fill { write!(f, " after {done} pages") } else { Ok(()) }
            }
            Self::NotMade => f.write_str("not made"),
            Self::Unsupported => f.write_str("not supported"),
        })
    }
}

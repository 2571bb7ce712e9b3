//! What one command line of a sweep asks for: a replay, in words that can be passed on.

use crate::limits::Need;
use crate::point::{Asked, Point};
use crate::setting::Setting;
use crate::swap::LimitSwap;
use quire_replay::KernelCosts;
use quire_trace::format::TraceHeader;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What one command line asks for, of whichever recording.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The name of the setting ([`Setting::named`]).
    pub setting: String,
    /// In which phase khugepaged is; all of them one after the other for [`Asked::Life`].
    pub phase: Option<usize>,
    /// [`Point::kernel`].
    pub kernel: Option<KernelCosts>,
    /// What counts.
    pub asked: Asked,
    /// The kinds of swap for which it has a row.
    pub serves: Vec<LimitSwap>,
    /// What the program needs, all its recordings together, if a share of that is asked for or a swap of its
    /// size.
    pub need: Option<Need>,
}

impl Request {
    /// For this replay; of [`Asked::Life`] for all phases.
    pub(crate) fn of(point: &Point, serves: Vec<LimitSwap>) -> Self {
        let phase = point.phase.filter(|_| point.asked != Asked::Life);
        let (setting, kernel, asked) = (point.setting.name.clone(), point.kernel, point.asked.clone());
        Self { setting, phase, kernel, asked, serves, need: None }
    }

    /// The replays of a recording with this header; none if its host has no such setting.
    pub(crate) fn points(&self, header: &TraceHeader) -> Option<Vec<Point>> {
        let setting = Setting::named(header, &self.setting)?;
        if self.asked == Asked::Life {
            return Some(crate::fitting::lives(&setting, self.kernel).collect());
        }
        Some(vec![Point { setting, phase: self.phase, kernel: self.kernel, asked: self.asked.clone() }])
    }

    /// The setting, and what is asked beside it, for a message.
    pub(crate) fn told(&self) -> String {
        use crate::point::{Amount, Meant};
        let what = match &self.asked {
            Asked::Life => String::new(),
            Asked::PeakUse => ": what of the peak is used again".to_owned(),
            Asked::Mappings(event) => format!(": mappings at event {event}"),
            Asked::Less(less) => {
                let swap = less.swap.map_or_else(String::new, |swap| format!(" with {}", swap.name()));
                match less.meant {
                    Meant::Percent(percent) => format!(": {percent} % of the peak{swap}"),
                    Meant::Amount(Amount::Limit(bytes)) => format!(": a limit of {bytes} bytes{swap}"),
                    Meant::Amount(Amount::Ram(bytes)) => format!(": {bytes} bytes of RAM{swap}"),
                }
            }
        };
        format!("{}{what}", self.setting)
    }
}

/// Which of how many lines of which sweep a command line is: `17/480:1f3a9c27`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Number {
    /// From 1.
    pub line: u64,
    /// Of how many.
    pub of: u64,
    /// What tells the sweep from others: digits of a digest of its lines.
    pub sweep: String,
}

/// Digits of the SHA-256 of a recording on its lines.
pub(super) const CONTENTS_DIGITS: usize = 16;
/// Digits of [`Number::sweep`].
pub(super) const SWEEP_DIGITS: usize = 8;
/// Lines that a sweep has at most.
pub(super) const MOST_LINES: u64 = 10_000_000;

impl Number {
    /// Whether it can be one.
    pub(super) fn is_one(&self) -> bool {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (1..=self.of).contains(&self.line)
            && self.of <= MOST_LINES
            && self.sweep.len() == SWEEP_DIGITS
            && self.sweep.bytes().all(is_digit)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, of, sweep } = self;
        write!(f, "{line}/{of}:{sweep}")
    }
}

impl FromStr for Number {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = || {
            let (line, rest) = text.split_once('/')?;
            let (of, sweep) = rest.split_once(':')?;
            Some(Self { line: line.parse().ok()?, of: of.parse().ok()?, sweep: sweep.to_owned() })
        };
        parsed()
            .filter(Self::is_one)
            .ok_or_else(|| "expected LINE/LINES:SWEEP, as quire sweep prints it".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_as_it_is_written() {
        for text in ["1/1:0123abcd", "17/480:1f3a9c27"] {
            assert_eq!(text.parse::<Number>().unwrap().to_string(), text);
        }
        for wrong in
            ["", "1/1", "0/1:0123abcd", "2/1:0123abcd", "1/1:0123abc", "1/1:0123abcg", "x/1:0123abcd"]
        {
            assert!(wrong.parse::<Number>().is_err(), "{wrong}");
        }
    }
}

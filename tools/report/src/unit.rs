//! Numbers with units.

/// What a number is of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Words: it is no number.
    Text,
    /// Bytes, shown in powers of 1024.
    Bytes,
    /// A count of something.
    Count,
    /// Seconds.
    Seconds,
    /// Nanoseconds.
    Nanoseconds,
    /// A share from 0 to 1, shown in percent.
    Share,
    /// An address, shown in hexadecimal digits.
    Address,
    /// Another unit, by its name.
    Other(String),
}

/// How an axis shows numbers: divided, and behind them a unit.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Shown {
    pub(crate) divisor: f64,
    pub(crate) name: String,
}

/// Steps from the first that a number may be to be shown with the next larger unit.
const BYTES: [(f64, &str); 4] = [(1.0, "B"), (1024.0, "KiB"), (1048576.0, "MiB"), (1073741824.0, "GiB")];
const TIMES: [(f64, &str); 4] = [(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")];
const COUNTS: [(f64, &str); 4] = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")];

impl Unit {
    /// The name in machine-readable data.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Text => "text",
            Self::Bytes => "bytes",
            Self::Count => "count",
            Self::Seconds => "s",
            Self::Nanoseconds => "ns",
            Self::Share => "share",
            Self::Address => "address",
            Self::Other(name) => name,
        }
    }

    fn steps(&self) -> &'static [(f64, &'static str)] {
        match self {
            Self::Bytes => &BYTES,
            Self::Nanoseconds => &TIMES,
            Self::Count => &COUNTS,
            _ => &[],
        }
    }

    /// The unit in which numbers up to `most` are shown.
    pub(crate) fn shown(&self, most: f64) -> Shown {
        let fits = self.steps().iter().rev().find(|(divisor, _)| most.abs() >= *divisor * 0.97);
        let (divisor, name) = match (fits.or(self.steps().first()), self) {
            (Some(&(divisor, name)), _) => (divisor, name),
            (None, Self::Seconds) => (1.0, "s"),
            (None, Self::Share) => (0.01, "%"),
            (None, Self::Other(name)) => (1.0, name.as_str()),
            (None, _) => (1.0, ""),
        };
        Shown { divisor, name: name.to_owned() }
    }

    /// The number with its unit, three digits.
    #[must_use]
    pub fn text(&self, value: f64) -> String {
        if *self == Self::Address {
            return format!("{:#x}", value as u64);
        }
        let shown = self.shown(value);
        let number = digits(value / shown.divisor, *self == Self::Count && shown.divisor == 1.0);
        if shown.name.is_empty() { number } else { format!("{number} {}", shown.name) }
    }
}

fn digits(value: f64, is_whole: bool) -> String {
    let decimals = match value.abs() {
        _ if is_whole && value.fract() == 0.0 => 0,
        0.0 => 0,
        size if size < 0.1 => 3,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// At most about `count` even steps from 0 to at least `most`, and the number behind the point that they
/// need.
pub(crate) fn ticks(most: f64, count: usize) -> (Vec<f64>, usize) {
    if most <= 0.0 || !most.is_finite() {
        return (vec![0.0, 1.0], 0);
    }
    let rough = most / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let steps = (most / step - 1e-9).ceil() as usize;
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    ((0..=steps).map(|place| place as f64 * step).collect(), decimals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (unit, value, text) in [
            (Unit::Bytes, 58_000_000.0, "55.3 MiB"),
            (Unit::Bytes, 0.0, "0 B"),
            (Unit::Bytes, 4096.0, "4.00 KiB"),
            (Unit::Nanoseconds, 1234.0, "1.23 µs"),
            (Unit::Count, 54_683.0, "54.7 k"),
            (Unit::Count, 7.0, "7"),
            (Unit::Share, 0.125, "12.5 %"),
            (Unit::Seconds, 2.5, "2.50 s"),
            (Unit::Address, 4096.0, "0x1000"),
            (Unit::Other("us/call".to_owned()), 12.0, "12.0 us/call"),
        ] {
            assert_eq!(unit.text(value), text);
        }
    }

    #[test]
    fn steps_are_even_and_reach_the_end() {
        assert_eq!(ticks(55.3, 5), (vec![0.0, 20.0, 40.0, 60.0], 0));
        assert_eq!(ticks(0.25, 5), (vec![0.0, 0.05, 0.1, 0.15000000000000002, 0.2, 0.25], 2));
        assert_eq!(ticks(0.0, 5).0.len(), 2);
        assert_eq!(ticks(f64::NAN, 5).0.len(), 2);
    }
}

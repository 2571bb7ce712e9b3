//! The results of each caller of the allocator.

use crate::common::*;
use quire_frame::{FailAim, FailCaller};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Every caller, by its place and by what it asked for.
#[derive(Default)]
pub(crate) struct Report {
    rows: BTreeMap<Place, Fate>,
    runs: u64,
    struck: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    file: &'static str,
    line: u32,
    column: u32,
    site: &'static str,
}

#[derive(Default)]
struct Fate {
    reached: u64,
    failed: u64,
    reached_by: BTreeSet<&'static str>,
    /// What a call returned of which an allocation here failed, and how often, by scenario.
    ends: BTreeMap<&'static str, BTreeMap<String, u64>>,
}

/// One line of the report.
pub(crate) struct Row<'r>(&'r Place, &'r Fate);

impl Report {
    /// Adds a run of `scenario` that ended with `error`, or successfully.
    pub(crate) fn note(&mut self, scenario: &'static str, callers: &[FailCaller], error: Option<Error>) {
        self.runs += 1;
        self.struck += u64::from(callers.iter().any(|caller| caller.failed > 0));
        for caller in callers {
            let location = caller.location;
            let place = Place {
                file: location.file(),
                line: location.line(),
                column: location.column(),
                site: caller.site,
            };
            let fate = self.rows.entry(place).or_default();
            fate.reached += caller.seen;
            fate.failed += caller.failed;
            fate.reached_by.insert(scenario);
            if caller.failed > 0 {
                let end = error.map_or("succeeded".into(), |error| error.to_string());
                *fate.ends.entry(scenario).or_default().entry(end).or_default() += 1;
            }
        }
    }

    /// How many runs there were.
    pub(crate) fn runs(&self) -> u64 {
        self.runs
    }

    /// How often a call there was made to fail, or `None` if it was never reached.
    pub(crate) fn failures_at(&self, file: &str, line: u32, column: u32) -> Option<u64> {
        let mut here = self.rows().filter(|row| row.is_at(file, line, column)).peekable();
        here.peek()?;
        Some(here.map(|row| row.failed()).sum())
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|(place, fate)| Row(place, fate))
    }

    /// The report in one line.
    pub(crate) fn summary(&self) -> String {
        let failed: u64 = self.rows().map(|row| row.failed()).sum();
        let (runs, struck, rows) = (self.runs, self.struck, self.rows.len());
        format!("{runs} runs, {struck} of them with failures; {failed} failures at {rows} callers")
    }
}

impl Row<'_> {
    pub(crate) fn is_at(&self, file: &str, line: u32, column: u32) -> bool {
        (self.0.file, self.0.line, self.0.column) == (file, line, column)
    }

    pub(crate) fn failed(&self) -> u64 {
        self.1.failed
    }

    /// What was asked for.
    pub(crate) fn site(&self) -> &'static str {
        self.0.site
    }

    /// An aim at the call.
    pub(crate) fn line(&self) -> FailAim {
        FailAim::Line { file: self.0.file, line: self.0.line }
    }
}

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { file, line, column, site } = self.0;
        write!(f, "{file}:{line}:{column} ({site})")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary())?;
        writeln!(f, "reached  failed  in  call of the allocator (what for)")?;
        writeln!(f, "{:21}scenario whose allocation failed there, and what its call returned", "")?;
        for row in self.rows() {
            let Fate { reached, failed, reached_by, ends } = row.1;
            writeln!(f, "{reached:7} {failed:7} {:3}  {row}", reached_by.len())?;
            for (scenario, ends) in ends {
                let ends: Vec<_> = ends.iter().map(|(end, times)| format!("{end} {times}x")).collect();
                writeln!(f, "{:21}{scenario}: {}", "", ends.join(", "))?;
            }
        }
        Ok(())
    }
}

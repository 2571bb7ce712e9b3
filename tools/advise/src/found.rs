//! What a replay found, as far as it counts.

use crate::less::{LimitOutcome, PeakFound};
use crate::outcome::Outcome;
use crate::point::{Asked, Point};
use quire_replay::{MappingLife, ReplayReport};
use quire_trace::format::Pressure;

/// What a replay found of what was asked.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// Of [`Asked::Life`]; or what the program needs, if that is more than the machine has.
    Life(Result<Box<Outcome>, String>),
    /// Of [`Asked::PeakUse`].
    PeakUse(PeakFound),
    /// Of [`Asked::Mappings`].
    Mappings(Vec<MappingLife>),
    /// Of [`Asked::Less`].
    Less(Box<LimitOutcome>),
}

impl Found {
    /// Of a recording that was `made_under` this pressure.
    pub(crate) fn of(point: &Point, report: ReplayReport, made_under: Option<Pressure>) -> Self {
        match point.asked {
            Asked::Life => Self::Life(match &report.does_not_fit {
                Some(finding) => Err(finding.what_it_needs()),
                None => Ok(Box::new(Outcome::of(report))),
            }),
            Asked::PeakUse => Self::PeakUse(PeakFound::of(&report, made_under)),
            Asked::Mappings(_) => Self::Mappings(report.mappings),
            Asked::Less(_) => Self::Less(Box::new(LimitOutcome::of(&report, made_under))),
        }
    }
}

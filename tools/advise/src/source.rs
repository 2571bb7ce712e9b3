//! Where the outcomes of replays come from: replays that are made here, or results that were stored.

use crate::error::AdviseError;
use crate::found::Found;
use crate::less::{LimitOutcome, PeakFound};
use crate::outcome::Outcome;
use crate::point::{Asked, Point};
use crate::stored::Stored;
use quire_replay::{MappingLife, Replay, ReplayError, ReplayOptions, ReplayReport};
use quire_trace::format::TraceHeader;
use std::path::{Path, PathBuf};

/// A recording of which replays are asked for.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) header: TraceHeader,
    /// How many events it has.
    pub(crate) events: u64,
    outcomes: Outcomes,
}

#[derive(Debug)]
enum Outcomes {
    /// As this host makes them.
    Replays(Replay),
    /// As every host makes them, or none.
    Anywhere(Replay),
    Results(Stored),
}

/// What a replay finds that is the same on every host.
pub(crate) fn anywhere(path: &Path, replay: &Replay, point: &Point) -> Result<ReplayReport, AdviseError> {
    let short = || AdviseError::HostIsShort(format!("{}, {}", path.display(), point.setting.name));
    let report = match replay.with(point.options()).run(&mut |_, _| {}) {
        Err(error) if error.is_of_host_memory() => return Err(short()),
        other => other?,
    };
    // What is out of proportion to what the recording holds fits nowhere.
    let fits_nowhere = report.does_not_fit.as_ref().is_some_and(|misfit| misfit.out_of_proportion);
    if report.host_is_short && !fits_nowhere { Err(short()) } else { Ok(report) }
}

/// The outcome of another kind of replay than the one that was asked for: results that are read are held
/// against what was asked.
fn other_kind() -> AdviseError {
    AdviseError::NotInResults("what is stored is of another kind than what was asked".to_owned())
}

/// Defines how an outcome of a kind is asked for.
macro_rules! ask {
    ($(#[$says:meta])* $name:ident, $kind:ident, $result:ty) => {
        $(#[$says])*
        pub(crate) fn $name(&self, point: &Point) -> Result<$result, AdviseError> {
            match self.found(point)? {
                Found::$kind(found) => Ok(found),
                _ => Err(other_kind()),
            }
        }
    };
}

impl Source {
    /// Looks the recording in `file` through, for replays.
    pub(crate) fn open(file: &Path) -> Result<Self, ReplayError> {
        let replay = Replay::open(file, ReplayOptions::default())?;
        let (header, events) = (replay.header()?, replay.needs().events());
        Ok(Self { path: file.to_path_buf(), header, events, outcomes: Outcomes::Replays(replay) })
    }

    /// The same, with an error in the place of what this host would find for want of memory.
    pub(crate) fn anywhere(self) -> Self {
        match self.outcomes {
            Outcomes::Replays(replay) => Self { outcomes: Outcomes::Anywhere(replay), ..self },
            outcomes => Self { outcomes, ..self },
        }
    }

    /// With stored results, of a recording that was there in `path`.
    pub(crate) fn with_results(path: PathBuf, header: TraceHeader, events: u64, stored: Stored) -> Self {
        Self { path, header, events, outcomes: Outcomes::Results(stored) }
    }

    /// Bytes of shared memory that its programs have at a time, in pages and in large folios. Of stored
    /// results it is not known.
    pub(crate) fn shared(&self) -> (u64, u64) {
        match &self.outcomes {
            Outcomes::Replays(replay) | Outcomes::Anywhere(replay) => replay.needs().shared(),
            Outcomes::Results(_) => (0, 0),
        }
    }

    /// The results that it has, if it has some.
    pub(crate) fn stored(&self) -> Option<&Stored> {
        match &self.outcomes {
            Outcomes::Replays(_) | Outcomes::Anywhere(_) => None,
            Outcomes::Results(stored) => Some(stored),
        }
    }

    /// What such a replay finds.
    pub(crate) fn found(&self, point: &Point) -> Result<Found, AdviseError> {
        match &self.outcomes {
            Outcomes::Replays(replay) => {
                Ok(self.of(point, replay.with(point.options()).run(&mut |_, _| {})?))
            }
            Outcomes::Anywhere(replay) => Ok(self.of(point, anywhere(&self.path, replay, point)?)),
            Outcomes::Results(stored) => match stored.find(point) {
                Some(found) => Ok(found),
                None => match anywhere(&self.path, stored.replay(&self.path, point)?, point) {
                    Err(error @ AdviseError::HostIsShort(_)) => {
                        Err(stored.miss(&self.path, point, error.to_string()))
                    }
                    other => Ok(self.of(point, other?)),
                },
            },
        }
    }

    fn of(&self, point: &Point, report: ReplayReport) -> Found {
        Found::of(point, report, self.header.pressure)
    }

    ask!(
        /// What [`Asked::Life`] finds.
        fits, Life, Result<Box<Outcome>, String>
    );
    ask!(
        /// What [`Asked::PeakUse`] finds.
        peak_use, PeakUse, PeakFound
    );
    ask!(
        /// What [`Asked::Mappings`] finds.
        mappings, Mappings, Vec<MappingLife>
    );
    ask!(
        /// What [`Asked::Less`] finds.
        less, Less, Box<LimitOutcome>
    );

    /// What [`Asked::Life`] finds; an error where the program does not fit.
    pub(crate) fn life(&self, point: &Point) -> Result<Outcome, AdviseError> {
        debug_assert_eq!(point.asked, Asked::Life);
        match self.fits(point)? {
            Ok(outcome) => Ok(*outcome),
            Err(finding) => Err(AdviseError::DoesNotFit(point.setting.name.clone(), finding)),
        }
    }
}

/// What was found; none if it is not among stored results, and cannot be replayed here.
pub(crate) fn if_stored<T>(found: Result<T, AdviseError>) -> Result<Option<T>, AdviseError> {
    match found {
        Err(AdviseError::NotInResults(_)) => Ok(None),
        other => other.map(Some),
    }
}

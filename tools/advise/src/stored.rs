//! Results of replays that were made elsewhere, and those that are asked for and are not among them.

use crate::error::AdviseError;
use crate::found::Found;
use crate::identity::Identity;
use crate::point::{Asked, Less, Meant, Point};
use quire_replay::{Replay, ReplayOptions};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Why a recording is of no use though there is one.
pub(crate) const OTHER_CONTENTS: &str = "it is not the one that the results are of";

/// Whether two replays of a recording are for the same share of its peak, or the same amount, with the same
/// kind of swap. The limit follows from that and from all recordings of the program, of which some may be
/// missing; and so does the phase of khugepaged.
fn is_meant(stored: &Point, asked: &Point) -> bool {
    let (Asked::Less(one), Asked::Less(other)) = (&stored.asked, &asked.asked) else { return false };
    let less = |less: &Less| (less.meant, less.swap, less.beside);
    stored.setting == asked.setting && stored.kernel == asked.kernel && less(one) == less(other)
}

/// The results of one recording.
#[derive(Debug)]
pub(crate) struct Stored {
    /// Of which contents.
    identity: Identity,
    results: Vec<(Point, Found)>,
    /// The limits in percent for which there are to be results.
    percents: BTreeSet<u32>,
    /// Opened on first use: the recording itself, or why it is not at hand.
    replay: OnceLock<Result<Replay, String>>,
    /// What was asked for and is not there, with the reason for which it was not replayed.
    missed: Mutex<Vec<(Point, String)>>,
}

impl Stored {
    pub(crate) fn new(identity: Identity, results: Vec<(Point, Found)>, percents: BTreeSet<u32>) -> Self {
        Self { identity, results, percents, replay: OnceLock::new(), missed: Mutex::default() }
    }

    /// Of which contents its recording is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The result of this replay.
    pub(crate) fn find(&self, point: &Point) -> Option<Found> {
        let exact = self.results.iter().find(|(stored, _)| stored == point);
        let found = exact.or_else(|| self.results.iter().find(|(stored, _)| is_meant(stored, point)));
        found.map(|(_, found)| found.clone())
    }

    /// The phase of khugepaged in the replays with less memory. Recordings take turns, and of those that did
    /// some may be missing.
    pub(crate) fn phase(&self) -> Option<usize> {
        let phases = self.results.iter().filter(|(point, _)| matches!(point.asked, Asked::Less(_)));
        phases.filter_map(|(point, _)| point.phase).min()
    }

    /// Whether there is one.
    pub(crate) fn has(&self, point: &Point) -> bool {
        self.results.iter().any(|(stored, _)| stored == point)
    }

    /// Whether a command line of a sweep was to bring it. What depends on other results is not among these.
    fn is_planned(&self, point: &Point) -> bool {
        match &point.asked {
            Asked::Life => true,
            Asked::PeakUse | Asked::Mappings(_) => false,
            Asked::Less(less) => match less.meant {
                Meant::Percent(percent) => self.percents.contains(&percent),
                Meant::Amount(_) => true,
            },
        }
    }

    /// The recording at `path`, if what is asked for is to be replayed here: a sweep plans no line for it,
    /// and the recording is at hand.
    pub(crate) fn replay(&self, path: &Path, point: &Point) -> Result<&Replay, AdviseError> {
        let open = || {
            let identity = Identity::of_file(path).map_err(|error| error.to_string())?;
            if identity != self.identity {
                return Err(OTHER_CONTENTS.to_owned());
            }
            Replay::open(path, ReplayOptions::default()).map_err(|error| error.to_string())
        };
        let found = if self.is_planned(point) {
            Err("no result of it is there".to_owned())
        } else {
            self.replay.get_or_init(open).as_ref().map_err(Clone::clone)
        };
        found.map_err(|why| self.miss(path, point, why))
    }

    /// It is not there, and could not be replayed: why.
    pub(crate) fn miss(&self, path: &Path, point: &Point, why: String) -> AdviseError {
        let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        let error = AdviseError::NotInResults(format!("{}: {why}", path.display()));
        if missed.iter().all(|(known, _)| known != point) {
            missed.push((point.clone(), why));
        }
        error
    }

    /// What was missed so far.
    pub(crate) fn missed(&self) -> Vec<(Point, String)> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

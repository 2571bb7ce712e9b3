//! Memory by address and time under settings of a prediction: replays of a recording, which no result holds.

use crate::error::AdviseError;
use crate::heat::{HEAT_COLUMNS, Heat, touched_pages};
use crate::jobs::in_parallel;
use crate::point::{Asked, Point};
use crate::predict::{Prediction, for_settings, open};
use quire_replay::{HeatMap, Replay, ReplayOptions};
use std::path::{Path, PathBuf};

/// What the present setting and `other`, by its place among the rows, have in memory by address and time, of
/// the first recording in `files` that settings are predicted from; none where nothing is ever in memory.
/// Three replays.
///
/// # Errors
///
/// [`AdviseError`].
pub fn heat(
    files: &[PathBuf],
    prediction: &Prediction,
    places: &[usize],
    at_once: usize,
) -> Result<Vec<(usize, Heat)>, AdviseError> {
    let sources = open(files)?;
    let first = for_settings(&sources).first().and_then(|&place| sources.get(place));
    heats(&first.ok_or(AdviseError::Nothing)?.path, prediction, places, at_once, false)
}

/// The same of the recording in `file`, as every host has it.
///
/// # Errors
///
/// [`AdviseError`]; [`AdviseError::HostIsShort`] where this one would have something else.
pub fn heat_of(
    file: &Path,
    prediction: &Prediction,
    places: &[usize],
    at_once: usize,
) -> Result<Vec<(usize, Heat)>, AdviseError> {
    heats(file, prediction, places, at_once, true)
}

fn heats(
    file: &Path,
    prediction: &Prediction,
    places: &[usize],
    at_once: usize,
    is_anywhere: bool,
) -> Result<Vec<(usize, Heat)>, AdviseError> {
    let replay = &Replay::open(file, ReplayOptions::default())?;
    // The first replay is of what is touched.
    let jobs: Vec<Option<usize>> = std::iter::once(None).chain(places.iter().copied().map(Some)).collect();
    let found = in_parallel(&jobs, at_once, &|_, _| {}, |job| {
        let Some(place) = job else { return Ok((touched_pages(replay, false)?, None)) };
        let (setting, _) = prediction.rows.get(*place).ok_or(AdviseError::Nothing)?;
        let point = Point { setting: setting.clone(), phase: Some(0), kernel: None, asked: Asked::Life };
        let options = ReplayOptions { life: false, heat: Some(HEAT_COLUMNS), ..point.options() };
        let report = replay.with(options).run(&mut |_, _| {})?;
        if is_anywhere && report.host_is_short {
            return Err(AdviseError::HostIsShort(format!("{}, {}", file.display(), setting.name)));
        }
        Ok::<_, AdviseError>((HeatMap::default(), Some(report)))
    })?;
    let Some(((touched, _), rest)) = found.split_first() else { return Ok(Vec::new()) };
    let rest = rest.iter().zip(places);
    Ok(rest.filter_map(|((_, report), &place)| Some((place, Heat::of(report.as_ref()?, touched)?))).collect())
}

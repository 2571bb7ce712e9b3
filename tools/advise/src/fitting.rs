//! Replays under each setting, and which settings have a row by them.

use crate::outcome::Outcome;
use crate::point::{Asked, Point};
use crate::setting::{Setting, phases};
use quire_replay::KernelCosts;
use std::collections::BTreeMap;

/// A setting under which the program does not fit into the memory that there is for its replay.
#[derive(Clone, Debug)]
pub struct Misfit {
    /// The setting.
    pub setting: Setting,
    /// How far it came, and with how much memory.
    pub finding: String,
}

/// One replay: of which recording, under which setting, with khugepaged in which phase.
pub(crate) struct SettingReplay {
    pub(crate) recording: usize,
    pub(crate) setting: usize,
    pub(crate) point: Point,
}

/// The replays of one recording under a setting.
pub(crate) fn lives(setting: &Setting, kernel: Option<KernelCosts>) -> impl Iterator<Item = Point> {
    (0..phases(setting).len()).map(move |phase| Point {
        setting: setting.clone(),
        phase: Some(phase),
        kernel,
        asked: Asked::Life,
    })
}

pub(crate) fn jobs(
    settings: &[Setting],
    recordings: &[usize],
    kernel: Option<KernelCosts>,
) -> Vec<SettingReplay> {
    let mut jobs = Vec::new();
    for (setting, of) in settings.iter().enumerate() {
        for &recording in recordings {
            jobs.extend(lives(of, kernel).map(|point| SettingReplay { recording, setting, point }));
        }
    }
    jobs
}

/// The settings under which the program fits, their replays in order with the outcomes, and the settings
/// under which it does not fit.
pub(crate) struct Fitting {
    pub(crate) settings: Vec<Setting>,
    pub(crate) jobs: Vec<SettingReplay>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) misfits: Vec<Misfit>,
}

impl Fitting {
    /// Of replays of which some did not fit: a setting with one of these has no row.
    pub(crate) fn of(
        settings: Vec<Setting>,
        jobs: Vec<SettingReplay>,
        outcomes: Vec<Result<Outcome, String>>,
    ) -> Self {
        let mut findings: BTreeMap<usize, String> = BTreeMap::new();
        for (job, outcome) in jobs.iter().zip(&outcomes) {
            if let Err(finding) = outcome {
                findings.entry(job.setting).or_insert_with(|| finding.clone());
            }
        }
        let mut found =
            Self { settings: Vec::new(), jobs: Vec::new(), outcomes: Vec::new(), misfits: Vec::new() };
        for (job, outcome) in jobs.into_iter().zip(outcomes) {
            if let (false, Ok(outcome)) = (findings.contains_key(&job.setting), outcome) {
                let setting = job.setting - findings.range(..job.setting).count();
                found.jobs.push(SettingReplay { setting, ..job });
                found.outcomes.push(outcome);
            }
        }
        for (place, setting) in settings.into_iter().enumerate() {
            match findings.remove(&place) {
                None => found.settings.push(setting),
                Some(finding) => found.misfits.push(Misfit { setting, finding }),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::setting::grid_of;
    use quire_mm::thp::HugeConfig;

    #[test]
    fn a_setting_that_does_not_fit_has_no_row() {
        let settings: Vec<Setting> = grid_of(HugeConfig::default(), |_| true).into_iter().take(3).collect();
        let names: Vec<String> = settings.iter().map(|setting| setting.name.clone()).collect();
        let job = |setting: usize| SettingReplay {
            recording: 0,
            setting,
            point: Point {
                setting: settings[setting].clone(),
                phase: None,
                kernel: None,
                asked: Asked::Life,
            },
        };
        let jobs = vec![job(0), job(1), job(1), job(2)];
        let outcome = |differences| Ok(Outcome { differences, ..Outcome::default() });
        let outcomes = vec![outcome(1), outcome(2), Err("too much".to_owned()), outcome(3)];
        let found = Fitting::of(settings, jobs, outcomes);
        assert_eq!(found.settings.iter().map(|it| &it.name).collect::<Vec<_>>(), [&names[0], &names[2]]);
        assert_eq!(found.jobs.iter().map(|job| job.setting).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(found.outcomes.iter().map(|it| it.differences).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(found.misfits.len(), 1);
        assert_eq!(
            (&found.misfits[0].setting.name, found.misfits[0].finding.as_str()),
            (&names[1], "too much")
        );
    }
}

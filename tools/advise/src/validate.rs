//! The program itself under the settings that were predicted.

use crate::figures::{Range, Row};
use crate::setting::Setting;
use quire_measure::{AtPeak, HostSettings, HugeSettings, MeasureError, Options, Truth, measure};
use std::ffi::OsString;
use std::process::{Command, Stdio};

/// A figure of a setting: what was predicted, and what the program then did.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figure {
    /// Its name.
    pub name: &'static str,
    /// `bytes`, `faults`, or `share` (0 to 1).
    pub unit: &'static str,
    /// What was predicted.
    pub predicted: Range,
    /// What was measured.
    pub measured: Range,
}

/// What was predicted for a setting, and what the program then did.
#[derive(Clone, PartialEq, Debug)]
pub struct Validation {
    /// The setting's name.
    pub setting: String,
    /// The figures that can be compared.
    pub figures: Vec<Figure>,
    /// The program's time from start to end, in seconds.
    pub seconds: Range,
}

/// Runs `command` under `setting` on this host so many times, and puts the host's settings back. The program's
/// standard output is dropped: it was seen when the program was recorded.
///
/// # Errors
///
/// [`MeasureError`]. The host's settings are as they were.
pub fn validate(
    setting: &Setting,
    predicted: &Row,
    command: &[OsString],
    runs: u16,
) -> Result<Validation, MeasureError> {
    let files = setting.files().into_iter();
    let words = files.fold(HugeSettings::new(), |words, (file, word)| words.with(file, word));
    let guard = HostSettings::default().apply(&words)?;
    let truths = (0..runs)
        .map(|_| {
            let mut program = Command::new(command.first().cloned().unwrap_or_default());
            program.args(command.iter().skip(1)).stdout(Stdio::null());
            measure(program, &Options::default())
        })
        .collect::<Result<Vec<Truth>, _>>();
    guard.restore()?;
    let truths = truths?;
    let range = |of: &dyn Fn(&Truth) -> f64| Range::of(truths.iter().map(of));
    let figure = |name, unit, predicted, of: &dyn Fn(&Truth) -> f64| Figure {
        name,
        unit,
        predicted,
        measured: range(of),
    };
    let huge_share = |truth: &Truth| truth.at_peak.as_ref().map_or(0.0, AtPeak::huge_share);
    Ok(Validation {
        setting: setting.name.clone(),
        figures: vec![
            figure("peak anonymous", "bytes", predicted.peak_largest, &|truth| truth.peak_anonymous as f64),
            figure("page tables", "bytes", predicted.peak_page_tables, &|truth| {
                truth.peak_page_tables_all as f64
            }),
            figure("2 MiB faults", "faults", predicted.huge_faults, &|truth| truth.host.huge_faults as f64),
            figure("mapped by 2 MiB", "share", predicted.huge_share, &huge_share),
        ],
        seconds: range(&|truth| truth.wall.as_secs_f64()),
    })
}

impl Figure {
    /// How far the median of the prediction is from what was measured, as a share of that. None where nothing was
    /// measured.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        let (predicted, measured) = (self.predicted.median, self.measured.median);
        (measured != 0.0).then(|| predicted / measured - 1.0)
    }
}

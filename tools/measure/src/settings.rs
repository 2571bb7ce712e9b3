//! The settings of transparent huge pages on this host.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::{Component, Path, PathBuf};

use crate::change::{Change, chosen};
use crate::error::MeasureError;
use crate::guard::Guard;
use crate::lock::Lock;

/// Where the kernel keeps them.
pub(crate) const TRANSPARENT_HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";
/// Locked by the measurement that changes them. It holds the old values while they are changed.
pub(crate) const LOCK: &str = "/run/quire-host-settings";

/// Wanted values of settings: a file below `/sys/kernel/mm/transparent_hugepage`, and the value in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HugeSettings(BTreeMap<String, String>);

impl HugeSettings {
    /// No settings: nothing is changed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one: `file` as in `enabled`, `hugepages-64kB/enabled`, `khugepaged/max_ptes_none`.
    #[must_use]
    pub fn with(mut self, file: impl Into<String>, word: impl Into<String>) -> Self {
        self.0.insert(file.into(), word.into());
        self
    }

    /// The value that `file` is to have.
    pub fn get(&self, file: &str) -> Option<&str> {
        self.0.get(file).map(String::as_str)
    }

    /// File and value of each, in the order of the files' names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(file, word)| (file.as_str(), word.as_str()))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<F: Into<String>, W: Into<String>> FromIterator<(F, W)> for HugeSettings {
    fn from_iter<I: IntoIterator<Item = (F, W)>>(settings: I) -> Self {
        settings.into_iter().fold(Self::new(), |all, (file, word)| all.with(file, word))
    }
}

/// The settings of a host, and the lock on them.
#[derive(Clone, Debug)]
pub struct HostSettings {
    root: PathBuf,
    lock: PathBuf,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self::at(TRANSPARENT_HUGE_PAGES, LOCK)
    }
}

impl HostSettings {
    /// Settings in the folder `root`, locked by the file `lock`: of this host by default, of a test.
    pub fn at(root: impl Into<PathBuf>, lock: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), lock: lock.into() }
    }

    /// The present value of `file`.
    ///
    /// # Errors
    ///
    /// The host does not have this setting.
    pub fn word(&self, file: &str) -> Result<String, MeasureError> {
        Ok(chosen(&self.text(&self.path(file)?)?))
    }

    /// Whether the host has this setting.
    pub fn has(&self, file: &str) -> bool {
        self.word(file).is_ok()
    }

    /// The present values of all settings that a program's memory depends on: `enabled`, `defrag`,
    /// `use_zero_page`, each size's `enabled`, and khugepaged's.
    ///
    /// # Errors
    ///
    /// The host has no transparent huge pages, or they cannot be read.
    pub fn current(&self) -> Result<HugeSettings, MeasureError> {
        let mut settings = HugeSettings::new();
        for file in ["enabled", "defrag", "use_zero_page", "shrink_underused"] {
            match self.word(file) {
                Err(MeasureError::Missing(_)) if file != "enabled" => {}
                word => settings = settings.with(file, word?),
            }
        }
        for entry in fs::read_dir(&self.root).map_err(|why| MeasureError::file(&self.root, why))? {
            let entry = entry.map_err(|why| MeasureError::file(&self.root, why))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("hugepages-") {
                let file = format!("{name}/enabled");
                match self.word(&file) {
                    // A size of shared memory only.
                    Err(MeasureError::Missing(_)) => {}
                    word => settings = settings.with(&file, word?),
                }
            }
        }
        for file in ["defrag", "max_ptes_none", "max_ptes_shared", "max_ptes_swap", "pages_to_scan"]
            .into_iter()
            .chain(["scan_sleep_millisecs", "alloc_sleep_millisecs"])
        {
            let file = format!("khugepaged/{file}");
            match self.word(&file) {
                Err(MeasureError::Missing(_)) => {}
                word => settings = settings.with(&file, word?),
            }
        }
        Ok(settings)
    }

    /// Applies `settings` until the guard is dropped, or this process ends in any way. Writes only what
    /// differs.
    ///
    /// # Errors
    ///
    /// Another measurement holds the settings, a file does not exist or cannot be written, or a value is not
    /// accepted. Then all are as they were.
    pub fn apply(&self, settings: &HugeSettings) -> Result<Guard, MeasureError> {
        let changes = self.changes(settings)?;
        for change in &changes {
            let writable = OpenOptions::new().write(true).open(&change.path);
            writable.map_err(|why| MeasureError::file(&change.path, why))?;
        }
        match Guard::lock(&self.lock, &self.root) {
            // Once more: the previous holder of the lock may have restored other values.
            Ok(lock) => Guard::start(lock, self.changes(settings)?),
            Err(MeasureError::Denied { .. }) if changes.is_empty() => Ok(Guard::unlocked()),
            Err(error) => Err(error),
        }
    }

    /// Whether the settings are free now, to be checked before long work. Another measurement can still take
    /// them in between.
    ///
    /// # Errors
    ///
    /// [`MeasureError::Busy`]: another measurement holds them.
    pub fn check_free(&self) -> Result<(), MeasureError> {
        match Lock::take(&self.lock) {
            Err(error @ MeasureError::Busy(_)) => Err(error),
            // Without privileges it depends on whether anything is to be changed.
            _ => Ok(()),
        }
    }

    /// What is not as `settings` say.
    fn changes(&self, settings: &HugeSettings) -> Result<Vec<Change>, MeasureError> {
        let mut changes = Vec::new();
        for (file, word) in settings.iter() {
            let path = self.path(file)?;
            let old = chosen(&self.text(&path)?);
            if old != word {
                changes.push(Change { path, old, new: word.to_owned() });
            }
        }
        Ok(changes)
    }

    fn path(&self, file: &str) -> Result<PathBuf, MeasureError> {
        let inside = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
        if file.is_empty() || !inside {
            return Err(MeasureError::Missing(self.root.join(file)));
        }
        Ok(self.root.join(file))
    }

    fn text(&self, path: &Path) -> Result<String, MeasureError> {
        fs::read_to_string(path).map_err(|why| MeasureError::file(path, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_outside_the_folder_are_refused() {
        let host = HostSettings::at("/nonexistent", "/nonexistent");
        for file in ["", "../ksm/run", "/proc/sys/vm/swappiness", "khugepaged/../../ksm/run"] {
            assert!(matches!(host.word(file), Err(MeasureError::Missing(_))), "{file:?}");
        }
    }
}

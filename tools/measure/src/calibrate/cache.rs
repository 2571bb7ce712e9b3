//! A cache of costs, for this kernel on this processor.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::{Costs, calibrate};
use crate::error::MeasureError;

impl Costs {
    /// The cached costs, or else measured now and cached. If the folder cannot be written, only time is lost.
    ///
    /// # Errors
    ///
    /// As [`calibrate`].
    pub fn of_this_host() -> Result<Self, MeasureError> {
        if let Some(costs) = Self::kept() {
            return Ok(costs);
        }
        let costs = calibrate()?;
        let _ = costs.keep();
        Ok(costs)
    }

    /// The cached costs for this kernel and processor.
    pub fn kept() -> Option<Self> {
        Self::kept_in(&folder().ok()?)
    }

    /// Keeps them in `$XDG_CACHE_HOME/quire` or `~/.cache/quire`, and returns the file.
    ///
    /// # Errors
    ///
    /// There is no such folder, and it cannot be created, or the file cannot be written.
    pub fn keep(&self) -> Result<PathBuf, MeasureError> {
        self.keep_in(&folder()?)
    }

    fn kept_in(folder: &Path) -> Option<Self> {
        let text = fs::read(folder.join(file_name(&kernel(), &cpu()))).ok()?;
        let costs: Self = serde_json::from_slice(&text).ok()?;
        // Different names may map to the same file.
        (costs.kernel == kernel() && costs.cpu == cpu()).then_some(costs)
    }

    fn keep_in(&self, folder: &Path) -> Result<PathBuf, MeasureError> {
        let file = folder.join(file_name(&self.kernel, &self.cpu));
        let write = || -> io::Result<()> {
            fs::create_dir_all(folder)?;
            let mut text = serde_json::to_vec_pretty(self)?;
            text.push(b'\n');
            let mut new = NamedTempFile::new_in(folder)?;
            new.write_all(&text)?;
            new.as_file().sync_all()?;
            // The file appears complete, or not at all.
            new.persist(&file).map_err(|error| error.error)?;
            Ok(())
        };
        let kept = write();
        kept.map_err(|why| {
            MeasureError::system(format!("cannot keep the costs in {}", file.display()), why)
        })?;
        Ok(file)
    }
}

fn folder() -> Result<PathBuf, MeasureError> {
    let path = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    let cache = cache.ok_or_else(|| {
        MeasureError::system("no folder for the costs", io::Error::other("HOME is not set"))
    })?;
    Ok(cache.join("quire"))
}

/// Costs of another way to measure them have another name.
fn file_name(kernel: &str, cpu: &str) -> String {
    let plain =
        |text: &str| text.replace(|letter: char| !letter.is_ascii_alphanumeric() && letter != '.', "-");
    format!("costs-2-{}-{}.json", plain(kernel), plain(cpu))
}

/// The kernel's release.
pub(super) fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The processor's model.
pub(super) fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        text.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| name.trim() == "model name");
    model.map_or("unknown", |(_, model)| model.trim()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::{Cost, FaultCost};
    use super::*;

    #[test]
    fn what_is_kept_is_found_again() {
        let above = tempfile::tempdir().expect("a folder");
        let folder = above.path().join("quire");
        let cost = |median| Cost { median, min: median / 2.0, max: median * 1.5 };
        let mut costs = Costs {
            kernel: kernel(),
            cpu: cpu(),
            faults: [(4096, FaultCost { total: cost(600.25), zeroing: 100.5, fixed: 499.75 })].into(),
            map_present: cost(250.0),
            zero_small: cost(100.5),
            zero_huge: cost(60_000.0),
            collapse: None,
            fork: None,
            kernel_memory: None,
        };
        assert_eq!(Costs::kept_in(&folder), None);
        let file = costs.keep_in(&folder).expect("a file");
        assert_eq!(Costs::kept_in(&folder).as_ref(), Some(&costs));
        assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 1);
        // Of another kernel.
        costs.kernel.push('x');
        fs::write(&file, serde_json::to_vec(&costs).expect("text")).expect("written");
        assert_eq!(Costs::kept_in(&folder), None);
        // Cut off.
        fs::write(&file, "{\"kernel\": ").expect("written");
        assert_eq!(Costs::kept_in(&folder), None);
    }
}

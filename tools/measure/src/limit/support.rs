//! Which compressed swap a host can set up.

use crate::swap::SwapKind;
use std::fs;
use std::path::{Path, PathBuf};

/// What a host's kernel has for compressed swap. Nothing is set up to find out: what a module would bring
/// counts as there, and so does a compressor of which the kernel does not tell.
#[derive(Clone, Debug)]
pub struct SwapSupport {
    root: PathBuf,
}

impl Default for SwapSupport {
    /// That of this host.
    fn default() -> Self {
        Self::at("/")
    }
}

impl SwapSupport {
    /// That of a host whose `sys`, `proc` and `lib` are in `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The release of the host's kernel, as `uname -r` tells it.
    #[must_use]
    pub fn kernel(&self) -> String {
        self.text("proc/sys/kernel/osrelease").trim().to_owned()
    }

    /// Why the host cannot set up such swap with this compressor; none if it can, as far as is known.
    #[must_use]
    pub fn lacks(&self, kind: SwapKind, compressor: &str) -> Option<String> {
        match kind {
            SwapKind::File => None,
            SwapKind::Zram => {
                if !self.is_there("sys/class/zram-control") && !self.has_module("zram") {
                    return Some("this kernel has no zram".to_owned());
                }
                // Without a device there is no list.
                let known = self.zram_compressors()?;
                let is_known = known.iter().any(|name| name == compressor);
                (!is_known).then(|| format!("zram has no {compressor} here, but {}", known.join(", ")))
            }
            SwapKind::Zswap => {
                let Ok(chosen) = fs::read_to_string(self.path("sys/module/zswap/parameters/compressor"))
                else {
                    return Some("this kernel has no zswap".to_owned());
                };
                let is_known =
                    chosen.trim() == compressor || self.has_crypto(compressor) || self.has_module(compressor);
                (!is_known).then(|| format!("this kernel has no {compressor} for zswap"))
            }
        }
    }

    /// The compressors of zram's first device, if there is one: the chosen one is in brackets.
    fn zram_compressors(&self) -> Option<Vec<String>> {
        let mut devices: Vec<PathBuf> =
            fs::read_dir(self.path("sys/block")).ok()?.flatten().map(|entry| entry.path()).collect();
        devices.sort();
        let is_zram =
            |device: &Path| device.file_name().is_some_and(|name| name.to_string_lossy().starts_with("zram"));
        let mut lists = devices
            .iter()
            .filter(|device| is_zram(device))
            .filter_map(|device| fs::read_to_string(device.join("comp_algorithm")).ok());
        let names = |list: String| {
            list.split_whitespace().map(|name| name.trim_matches(['[', ']']).to_owned()).collect()
        };
        lists.next().map(names)
    }

    /// Whether the kernel has this algorithm now.
    fn has_crypto(&self, name: &str) -> bool {
        let of_line = |line: &str| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == "name").then(|| value.trim().to_owned())
        };
        self.text("proc/crypto").lines().filter_map(of_line).any(|known| known == name)
    }

    /// Whether it has this module, or has it built in.
    fn has_module(&self, name: &str) -> bool {
        let folder = format!("lib/modules/{}", self.kernel());
        let file = format!("/{name}.ko");
        let is_it = |line: &str| {
            let path = line.split(':').next().unwrap_or_default();
            // They may be compressed: NAME.ko.zst.
            path.rsplit_once(&file).is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with('.'))
        };
        let lists = ["modules.dep", "modules.builtin"];
        lists.iter().any(|list| self.text(&format!("{folder}/{list}")).lines().any(is_it))
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    fn is_there(&self, below: &str) -> bool {
        self.path(below).exists()
    }

    /// The text of a file; nothing if it is not there.
    fn text(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A host with these files.
    fn host(files: &[(&str, &str)]) -> (TempDir, SwapSupport) {
        let folder = TempDir::new().unwrap();
        for (file, text) in files.iter().chain(&[("proc/sys/kernel/osrelease", "6.1.0-9\n")]) {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let support = SwapSupport::at(folder.path());
        (folder, support)
    }

    const ZSWAP: (&str, &str) = ("sys/module/zswap/parameters/compressor", "lzo\n");
    const CONTROL: (&str, &str) = ("sys/class/zram-control/hot_remove", "");

    #[test]
    fn a_kernel_without_zram_and_zswap_has_a_disk() {
        let (_folder, host) = host(&[]);
        assert_eq!(host.lacks(SwapKind::Zram, "lz4").unwrap(), "this kernel has no zram");
        assert_eq!(host.lacks(SwapKind::Zswap, "lz4").unwrap(), "this kernel has no zswap");
        assert_eq!((host.lacks(SwapKind::File, "lz4"), host.kernel().as_str()), (None, "6.1.0-9"));
    }

    #[test]
    fn compressors_that_a_kernel_lacks_are_told() {
        let crypto = ("proc/crypto", "name         : lzo\ndriver       : lz4-scomp\n\nname : lz4hc\n");
        let devices = [
            ("sys/block/vda/comp_algorithm", "zstd"),
            ("sys/block/zram0/comp_algorithm", "lzo-rle lzo [lz4] \n"),
        ];
        let (_folder, host) = host(&[&[ZSWAP, CONTROL, crypto], &devices[..]].concat());
        assert_eq!(host.lacks(SwapKind::Zram, "lz4"), None, "the chosen one is in brackets");
        assert_eq!(
            host.lacks(SwapKind::Zram, "zstd").unwrap(),
            "zram has no zstd here, but lzo-rle, lzo, lz4"
        );
        assert_eq!(host.lacks(SwapKind::Zswap, "lz4").unwrap(), "this kernel has no lz4 for zswap");
        assert_eq!(host.lacks(SwapKind::Zswap, "lzo"), None);
    }

    /// Most distributions have zram and lz4 as modules, which are loaded when they are asked for.
    #[test]
    fn what_a_module_brings_is_not_missing() {
        let modules = "kernel/drivers/block/zram/zram.ko.zst: kernel/mm/zsmalloc.ko.zst\n\
                       kernel/crypto/lz4.ko: kernel/lib/lz4/lz4_compress.ko\n";
        let (_folder, with) = host(&[("lib/modules/6.1.0-9/modules.dep", modules), ZSWAP]);
        assert_eq!(with.lacks(SwapKind::Zram, "lz4"), None);
        assert_eq!(with.lacks(SwapKind::Zram, "zstd"), None, "it is not known");
        assert_eq!(with.lacks(SwapKind::Zswap, "lz4"), None);
        assert!(with.lacks(SwapKind::Zswap, "zstd").is_some());
        // Those of another kernel, and a module whose name is only part of it.
        let others = [
            ("lib/modules/6.2.0/modules.dep", modules),
            ("lib/modules/6.1.0-9/modules.dep", "a/not-zram.ko:\n"),
        ];
        let (_folder, without) = host(&[&[ZSWAP], &others[..]].concat());
        assert!(
            without.lacks(SwapKind::Zram, "lz4").is_some() && without.lacks(SwapKind::Zswap, "lz4").is_some()
        );
        let (_folder, built_in) =
            host(&[("lib/modules/6.1.0-9/modules.builtin", "kernel/drivers/block/zram/zram.ko\n")]);
        assert_eq!(built_in.lacks(SwapKind::Zram, "lz4"), None);
    }
}

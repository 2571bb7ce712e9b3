//! The commands that apply a limit and undo it.

use super::enough::Enough;
use super::setting::LimitSwap;

/// Lines for a shell of root's, or of a file, that put a limit or its swap in place by one of several means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Means {
    /// In a word: `systemd`, `cgroup_v2`, `cgroup_v1`, `zram`, `zram_generator`, `zswap`, `disk`.
    pub name: &'static str,
    /// The commands that set it up.
    pub apply: Vec<String>,
    /// The commands that remove it.
    pub undo: Vec<String>,
}

const V2: &str = "/sys/fs/cgroup/GROUP";
const V1: &str = "/sys/fs/cgroup/memory/GROUP";
const ZSWAP: &str = "/sys/module/zswap/parameters";
const GENERATOR: &str = "/etc/systemd/zram-generator.conf.d";
const GENERATED: &str = "systemd-zram-setup@zram0.service";
const SWAP_FILE: &str = "/swapfile.limit";

impl Enough {
    /// How to set the limit: for a unit of systemd, or a group of either version of cgroups. UNIT and GROUP
    /// stand for their names.
    #[must_use]
    pub fn limit_means(&self) -> Vec<Means> {
        let (high, max) = (self.high, self.max);
        vec![
            Means {
                name: "systemd",
                apply: vec![format!(
                    "systemctl set-property UNIT MemoryHigh={}M MemoryMax={}M",
                    high >> 20,
                    max >> 20
                )],
                undo: vec!["systemctl set-property UNIT MemoryHigh=infinity MemoryMax=infinity".to_owned()],
            },
            Means {
                name: "cgroup_v2",
                apply: vec![
                    format!("echo {high} > {V2}/memory.high"),
                    format!("echo {max} > {V2}/memory.max"),
                ],
                undo: ["high", "max"].map(|file| format!("echo max > {V2}/memory.{file}")).into(),
            },
            Means {
                name: "cgroup_v1",
                apply: vec![format!("echo {high} > {V1}/memory.limit_in_bytes")],
                undo: vec![format!("echo -1 > {V1}/memory.limit_in_bytes")],
            },
        ]
    }

    /// How to set up the swap that the limit was predicted with.
    #[must_use]
    pub fn swap_means(&self) -> Vec<Means> {
        let size = self.swap_bytes >> 20;
        match self.least.setting.swap {
            swap @ (LimitSwap::Zram | LimitSwap::ZramZstd) => {
                let algorithm = if swap == LimitSwap::Zram { "lz4" } else { "zstd" };
                zram(size, algorithm)
            }
            LimitSwap::Zswap => {
                let mut means = disk(size);
                means.name = "zswap";
                means.apply.push(format!("echo lz4 > {ZSWAP}/compressor"));
                means.apply.push(format!("echo Y > {ZSWAP}/enabled"));
                means.undo.insert(0, format!("echo N > {ZSWAP}/enabled"));
                vec![means]
            }
            LimitSwap::Disk => vec![disk(size)],
        }
    }
}

/// Compressed memory of so many MiB.
fn zram(size: u64, algorithm: &str) -> Vec<Means> {
    vec![
        Means {
            name: "zram_generator",
            apply: vec![
                format!("mkdir -p {GENERATOR}"),
                format!(
                    "printf '[zram0]\\nzram-size = {size}\\ncompression-algorithm = {algorithm}\\n' > \
                     {GENERATOR}/limit.conf"
                ),
                "systemctl daemon-reload".to_owned(),
                format!("systemctl start {GENERATED}"),
            ],
            undo: vec![format!("systemctl stop {GENERATED}"), format!("rm {GENERATOR}/limit.conf")],
        },
        Means {
            name: "zram",
            apply: vec![
                format!("zramctl /dev/zram0 --algorithm {algorithm} --size {size}M"),
                "mkswap /dev/zram0".to_owned(),
                "swapon --priority 100 /dev/zram0".to_owned(),
            ],
            undo: vec!["swapoff /dev/zram0".to_owned(), "zramctl --reset /dev/zram0".to_owned()],
        },
    ]
}

/// A swap file of so many MiB.
fn disk(size: u64) -> Means {
    Means {
        name: "disk",
        apply: vec![
            format!("fallocate -l {size}M {SWAP_FILE} && chmod 600 {SWAP_FILE}"),
            format!("mkswap {SWAP_FILE}"),
            format!("swapon {SWAP_FILE}"),
        ],
        undo: vec![format!("swapoff {SWAP_FILE}"), format!("rm {SWAP_FILE}")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{LimitSetting, Priced};

    fn enough(swap: LimitSwap) -> Enough {
        let setting = LimitSetting { percent: 75, bytes: 75 << 20, swap };
        let least = Priced { setting, major_faults: 0.0, share: 0.0 };
        Enough { least, smaller: Vec::new(), high: 80 << 20, max: 90 << 20, swap_bytes: 128 << 20 }
    }

    #[test]
    fn a_limit_is_set_and_taken_away() {
        let means = enough(LimitSwap::Zram).limit_means();
        assert_eq!(means[0].apply, ["systemctl set-property UNIT MemoryHigh=80M MemoryMax=90M"]);
        assert!(means[0].undo[0].contains("MemoryHigh=infinity MemoryMax=infinity"));
        assert!(
            means[1]
                .apply
                .iter()
                .any(|line| line.starts_with("echo 94371840 > ") && line.ends_with("memory.max"))
        );
        assert!(means[2].apply[0].starts_with("echo 83886080 > "), "version 1 has no memory.high");
        assert!(means.iter().all(|means| !means.undo.is_empty()));
    }

    #[test]
    fn each_swap_can_be_set_up() {
        let lines =
            |swap| enough(swap).swap_means().iter().flat_map(|means| means.apply.clone()).collect::<Vec<_>>();
        assert!(lines(LimitSwap::Zram)[1].contains("zram-size = 128"));
        assert!(lines(LimitSwap::ZramZstd)[1].contains("algorithm = zstd"));
        assert!(
            lines(LimitSwap::Zswap)
                .iter()
                .any(|line| line == "echo Y > /sys/module/zswap/parameters/enabled")
        );
        assert!(!lines(LimitSwap::Disk).iter().any(|line| line.contains("zswap")));
    }
}

//! The commands that apply a limit and undo it.

use super::enough::Enough;
use crate::swap::LimitSwap;

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
const GENERATOR: &str = "/run/systemd/zram-generator.conf.d";
const SWAP_FILE: &str = "/swapfile.XXXXXX";
/// Linux fills the swap of the highest priority first. What one program's limit was priced with is not to wait
/// until the file of another one is full, so zram comes first, and files before other swap of the host.
const ZRAM_PRIORITY: u16 = 32767;
const FILE_PRIORITY: u16 = ZRAM_PRIORITY - 1;

/// Lines of a shell.
fn lines<const N: usize>(lines: [&str; N]) -> Vec<String> {
    lines.map(str::to_owned).into()
}

impl Means {
    /// How to set up the swap, each way of doing so, and then how to set the limit. In that order: Linux
    /// kills what is over its limit and has no swap. It is undone in the other order.
    #[must_use]
    pub fn all(enough: &Enough) -> Vec<Self> {
        let mut means = swap_means(enough);
        means.extend(limit_means(enough));
        means
    }
}

/// How to set the limit: for a unit of systemd, or a group of either version of cgroups. UNIT and GROUP
/// stand for their names. The commands that undo it are for the same shell: they restore what was there.
fn limit_means(enough: &Enough) -> Vec<Means> {
    let (high, max) = (enough.high, enough.max);
    // Version 1 does not charge a group for the pool of zswap.
    let limit = high - enough.pool;
    vec![
        Means {
            name: "systemd",
            apply: lines([
                "high=$(systemctl show --value -p MemoryHigh UNIT) max=$(systemctl show --value -p MemoryMax UNIT)",
                &format!(
                    "systemctl set-property --runtime UNIT MemoryHigh={}M MemoryMax={}M",
                    high >> 20,
                    max >> 20
                ),
            ]),
            undo: lines(["systemctl set-property --runtime UNIT MemoryHigh=${high:?} MemoryMax=${max:?}"]),
        },
        Means {
            name: "cgroup_v2",
            apply: lines([
                &format!("high=$(cat {V2}/memory.high) max=$(cat {V2}/memory.max)"),
                &format!("echo {high} > {V2}/memory.high"),
                &format!("echo {max} > {V2}/memory.max"),
            ]),
            undo: ["high", "max"].map(|file| format!("echo ${{{file}:?}} > {V2}/memory.{file}")).into(),
        },
        Means {
            name: "cgroup_v1",
            apply: lines([
                &format!("old=$(cat {V1}/memory.limit_in_bytes)"),
                &format!("echo {limit} > {V1}/memory.limit_in_bytes"),
            ]),
            undo: lines([&format!("echo ${{old:?}} > {V1}/memory.limit_in_bytes")]),
        },
    ]
}

/// How to set up the swap that the limit was predicted with, beside what the host has.
fn swap_means(enough: &Enough) -> Vec<Means> {
    let size = enough.swap_bytes >> 20;
    match enough.least.setting.swap {
        swap @ (LimitSwap::Zram | LimitSwap::ZramZstd) => {
            let algorithm = if swap == LimitSwap::Zram { "lz4" } else { "zstd" };
            zram(size, algorithm)
        }
        LimitSwap::Zswap => {
            let Means { apply, mut undo, .. } = disk(size);
            // What was there is read first: on a host without zswap nothing else is done.
            let apply = vec![format!(
                "compressor=$(cat {ZSWAP}/compressor) && enabled=$(cat {ZSWAP}/enabled) && {} && \
                 echo lz4 > {ZSWAP}/compressor && echo Y > {ZSWAP}/enabled",
                apply.concat()
            )];
            undo.extend(["enabled", "compressor"].map(|file| format!("echo ${{{file}:?}} > {ZSWAP}/{file}")));
            vec![Means { name: "zswap", apply, undo }]
        }
        LimitSwap::Disk => vec![disk(size)],
    }
}

/// Compressed memory of so many MiB, in a device of its own.
fn zram(size: u64, algorithm: &str) -> Vec<Means> {
    vec![
        Means {
            name: "zram_generator",
            apply: lines([
                "modprobe zram; n=$(cat /sys/class/zram-control/hot_add)",
                &format!("mkdir -p {GENERATOR}"),
                &format!(
                    "printf '[zram%s]\\nzram-size = {size}\\ncompression-algorithm = {algorithm}\\nswap-priority = {ZRAM_PRIORITY}\\n' \
                     $n > {GENERATOR}/limit-$n.conf"
                ),
                "systemctl daemon-reload",
                "systemctl start systemd-zram-setup@zram$n.service",
            ]),
            undo: lines([
                "systemctl stop systemd-zram-setup@zram${n:?}.service",
                &format!("rm {GENERATOR}/limit-${{n:?}}.conf; systemctl daemon-reload"),
                "echo ${n:?} > /sys/class/zram-control/hot_remove",
            ]),
        },
        Means {
            name: "zram",
            apply: lines([
                &format!("modprobe zram; dev=$(zramctl --find --algorithm {algorithm} --size {size}M)"),
                "mkswap $dev",
                &format!("swapon --priority {ZRAM_PRIORITY} $dev"),
            ]),
            undo: lines(["swapoff ${dev:?}", "zramctl --reset ${dev:?}"]),
        },
    ]
}

/// A swap file of so many MiB, with a name of its own: another program's limit may have one.
fn disk(size: u64) -> Means {
    Means {
        name: "disk",
        // One command: what follows one that fails does nothing.
        apply: lines([&format!(
            "swap=$(mktemp {SWAP_FILE}) && fallocate -l {size}M $swap && mkswap $swap && swapon --priority {FILE_PRIORITY} $swap"
        )]),
        // Linux removes no file that it swaps to, and one that it could not swap to is to go, too.
        undo: lines(["swapoff ${swap:?}; rm ${swap:?}"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{LimitSetting, Need, Priced};
    use crate::range::Range;

    fn enough(swap: LimitSwap) -> Enough {
        let setting = LimitSetting { percent: 75, bytes: 75 << 20, need: Need::default(), swap };
        let share = Range::default();
        let least = Priced { setting, major_faults: 0.0, share, once_seconds: 0.0, may_be_killed: false };
        let smaller = Vec::new();
        let (high, max, swap_bytes) = (80 << 20, 90 << 20, 128 << 20);
        Enough { least, smaller, high, max, pool: 0, swap_bytes, saved: 0 }
    }

    #[test]
    fn a_limit_is_set_and_taken_away() {
        let means = limit_means(&enough(LimitSwap::Zram));
        assert_eq!(means[0].apply[1], "systemctl set-property --runtime UNIT MemoryHigh=80M MemoryMax=90M");
        assert!(
            means[1].apply[2].starts_with("echo 94371840 > ") && means[1].apply[2].ends_with("memory.max")
        );
        assert!(means[2].apply[1].starts_with("echo 83886080 > "), "version 1 has no memory.high");
        assert!(means.iter().all(|means| !means.undo.is_empty()));
        let with_pool = limit_means(&Enough { pool: 20 << 20, ..enough(LimitSwap::Zswap) });
        let first = &with_pool[2].apply[1];
        assert!(first.starts_with("echo 62914560 > "), "version 1 is charged for no pool: {first}");
    }

    #[test]
    fn each_swap_can_be_set_up() {
        let lines =
            |swap| swap_means(&enough(swap)).iter().flat_map(|means| means.apply.clone()).collect::<Vec<_>>();
        assert!(lines(LimitSwap::Zram)[2].contains("zram-size = 128"));
        assert!(lines(LimitSwap::ZramZstd)[2].contains("algorithm = zstd"));
        assert!(!lines(LimitSwap::Zram).iter().any(|line| line.contains("zram0")), "the host may have one");
        assert!(
            lines(LimitSwap::Zswap)
                .iter()
                .any(|line| line.ends_with("echo Y > /sys/module/zswap/parameters/enabled"))
        );
        assert!(!lines(LimitSwap::Disk).iter().any(|line| line.contains("zswap")));
    }

    /// Another program's limit may have been set up with the other kind.
    #[test]
    fn zram_is_used_before_files_and_both_before_what_there_is() {
        let priority = |swap| -> Vec<i32> {
            let lines = swap_means(&enough(swap)).into_iter().flat_map(|means| means.apply);
            let after = |line: &str, word: &str| {
                let (_, rest) = line.split_once(word)?;
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                digits.parse().ok()
            };
            let of = |line: String| after(&line, "--priority ").or_else(|| after(&line, "swap-priority = "));
            lines.filter_map(of).collect()
        };
        let [zram, zstd, zswap, disk] = LimitSwap::ALL.map(priority);
        assert_eq!((zram.len(), zswap.len(), disk.len()), (2, 1, 1));
        assert!(
            zram == zstd && zram[0] == zram[1] && zram[0] > disk[0] && zswap == disk,
            "{zram:?} {disk:?}"
        );
        assert!(zram[0] <= 32767 && disk[0] > 100, "the most there is; what zram has by default");
    }

    /// What is over a limit and has no swap is killed.
    #[test]
    fn the_swap_is_set_up_before_the_limit() {
        for swap in LimitSwap::ALL {
            let names: Vec<_> = Means::all(&enough(swap)).iter().map(|means| means.name).collect();
            let limits = names.iter().position(|&name| name == "systemd").expect("a limit");
            assert!(limits > 0 && names[limits..] == ["systemd", "cgroup_v2", "cgroup_v1"], "{names:?}");
        }
    }

    /// Each that changes what the host has keeps that in a variable of the shell, and the undo uses it.
    #[test]
    fn what_was_there_is_restored() {
        let all = LimitSwap::ALL.map(|swap| swap_means(&enough(swap))).concat();
        for means in limit_means(&enough(LimitSwap::Disk)).iter().chain(&all) {
            let undo = means.undo.join("; ");
            // An undo in another shell does nothing: an empty limit would be one of 0.
            assert_eq!(undo.matches('$').count(), undo.matches(":?}").count(), "{means:?}");
            for name in undo.split("${").skip(1) {
                let name: String = name.chars().take_while(char::is_ascii_lowercase).collect();
                let set = format!("{name}=$(");
                assert!(means.apply.iter().any(|line| line.contains(&set)), "{name}: {means:?}");
            }
            assert!(undo.contains('$'), "{means:?}");
        }
    }
}

//! What the memory manager executes in a replay, counted by valgrind.

use crate::failure::Failure;
use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// Counts the instructions of one replay: the file, the setting's name, the switches of techniques.
pub(crate) type Counter = Box<dyn Fn(&Path, &str, &[(&str, &str)]) -> Result<u64, String> + Sync>;

/// A counter, if valgrind is there.
///
/// # Errors
///
/// It is not, or this program does not know its own file.
pub(crate) fn counter() -> Result<Counter, Failure> {
    let found =
        Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return Err(Failure::input(
            "--instructions needs valgrind; install it with: apt-get install valgrind",
        ));
    }
    let quire = std::env::current_exe().map_err(Failure::input)?;
    Ok(Box::new(move |file, setting, switches| count(&quire, file, setting, switches)))
}

fn count(quire: &Path, file: &Path, setting: &str, switches: &[(&str, &str)]) -> Result<u64, String> {
    // valgrind writes the profile when the program has ended, by name.
    let folder = tempfile::Builder::new().prefix("quire-profile-").tempdir();
    let folder = folder.map_err(|error| format!("no folder for a profile: {error}"))?;
    let profile = folder.path().join("profile");
    let mut option = std::ffi::OsString::from("--callgrind-out-file=");
    option.push(&profile);
    let mut command = Command::new("valgrind");
    command.arg("--quiet").arg("--tool=callgrind").arg("--compress-pos=no").arg(option);
    command.arg(quire).arg("replay").arg("--json").arg("--setting").arg(setting);
    for (name, value) in switches {
        command.arg("--technique").arg(format!("{name}={value}"));
    }
    let output = command.arg(file).output().map_err(|error| format!("valgrind: {error}"))?;
    let text = std::fs::read_to_string(&profile).unwrap_or_default();
    let instructions = of_manager(&text);
    if instructions == 0 {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(format!("valgrind counted nothing: {}", words.lines().next().unwrap_or("no message")));
    }
    Ok(instructions)
}

/// The crates of the memory manager.
const CRATES: [&str; 15] = [
    "quire_arch::",
    "quire_frame::",
    "quire_slab::",
    "quire_vma_tree::",
    "quire_pagetable::",
    "quire_vma::",
    "quire_thp::",
    "quire_pageout::",
    "quire_fault::",
    "quire_space::",
    "quire_sync::",
    "quire_memcg::",
    "quire_swap::",
    "quire_reclaim::",
    "quire_mm::",
];

/// Instructions that functions of the memory manager executed themselves, audits apart, in a profile of
/// callgrind.
fn of_manager(profile: &str) -> u64 {
    let mut names: HashMap<&str, bool> = HashMap::new();
    let (mut sum, mut counts, mut is_call) = (0, false, false);
    for line in profile.lines() {
        if let Some(function) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
            // A name is written out where it occurs first, with a number that stands for it from then on.
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            if !name.is_empty() {
                let own = CRATES.iter().any(|known| name.contains(known)) && !name.contains("audit");
                names.insert(number, own);
            }
            if line.starts_with("fn=") {
                counts = names.get(number).copied().unwrap_or(false);
            }
        } else if line.starts_with("calls=") {
            // What follows is the callee's.
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok()).unwrap_or(0);
            if counts && !std::mem::take(&mut is_call) {
                sum += cost;
            }
            is_call = false;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_managers_own_instructions_count() {
        let profile = "version: 1\nfn=(1) quire_replay::run\n10 5\ncfn=(2) quire_space::space::Space::fault\n\
                       calls=1 0\n10 900\n\nfn=(2)\n20 30\n21 4\ncfn=(3) quire_mm::memory::audit\ncalls=1 0\n21 800\n\n\
                       fn=(3)\n1 800\n\nfn=(1)\n11 7\n\nfn=(2)\n22 6\ntotals: 852\n";
        assert_eq!(of_manager(profile), 30 + 4 + 6);
    }
}

//! What `quire advise --from` prints for all programs together.

use super::columns::{aligned, headed};
use super::quantity::size;
use super::{say, say_wrapped, shorten};
use quire_advise::{Fleet, FleetSetting, Loser};
use serde_json::{Value, json};

/// A change in percent, with its sign.
fn percent(share: f64) -> String {
    // Of no change no sign.
    let share = if share.abs() < 0.0005 { 0.0 } else { share };
    format!("{:+.1} %", share * 100.0)
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// How a program loses, in words.
fn loses(loser: &Loser) -> String {
    let memory = (loser.memory > 0.0).then(|| format!("memory {:+.0} %", loser.memory * 100.0));
    let time = (loser.time > 0.0).then(|| format!("time {:+.0} %", loser.time * 100.0));
    memory.into_iter().chain(time).collect::<Vec<_>>().join(", ")
}

/// The program: by one of its recordings if others have its command.
fn program(loser: &Loser) -> String {
    let command = shorten(&loser.command, 40);
    if !loser.is_one_of_several {
        return command;
    }
    format!("{command} of {}", loser.recording.display())
}

/// The sentences.
pub(crate) fn verdict(fleet: &Fleet) -> Vec<String> {
    let mut lines = vec![format!(
        "Fleet: {} programs. For {} nothing changes; of {} too much is not known, and they count nowhere else.",
        fleet.programs, fleet.unchanged, fleet.unreliable
    )];
    let others = fleet.settings.iter().filter(|setting| setting.present < setting.programs);
    // Of equals the first of the table.
    let best =
        others.rev().filter(|setting| setting.suits > 0).max_by_key(|setting| (setting.suits, setting.named));
    lines.extend(best.map(|best| {
        format!(
            "{} suits most: {} of {} programs, {} of whose verdicts name it.",
            best.name, best.suits, best.programs, best.named
        )
    }));
    if fleet.enough_known > 0 {
        lines.push(format!(
            "Memory: for {} programs it is known how much is enough. That saves {} of RAM at their peaks together.",
            fleet.enough_known,
            size(fleet.enough_saved as f64)
        ));
    }
    lines
}

/// Prints the table, and what it says.
pub(crate) fn print(fleet: &Fleet) {
    say(format_args!(
        "\nAll programs, each setting against the present one of each: memory is the sum of the peaks of anonymous\n\
         memory, time an estimate of what page faults save of the processor time:"
    ));
    let mut table =
        headed(["setting", "programs", "now", "suits", "named", "memory", "change", "time", "worst loser"]);
    for setting in &fleet.settings {
        let FleetSetting { name, programs, present, named, suits, memory_now, memory, .. } = setting;
        let worst = setting
            .worst
            .as_ref()
            .map_or_else(String::new, |worst| format!("{} ({})", program(worst), loses(worst)));
        table.add_row([
            name.clone(),
            programs.to_string(),
            present.to_string(),
            suits.to_string(),
            named.to_string(),
            size(*memory),
            percent(share(memory - memory_now, *memory_now)),
            percent(-share(setting.seconds_saved, setting.seconds)),
            worst,
        ]);
    }
    say(aligned(table, 1..8));
    verdict(fleet).iter().for_each(|line| say_wrapped(line));
}

/// An object a setting, and one for the fleet.
pub(crate) fn objects(fleet: &Fleet) -> Vec<Value> {
    let setting = |setting: &FleetSetting| {
        json!({
            "fleet_setting": setting.name,
            "programs": setting.programs,
            "present": setting.present,
            "suits": setting.suits,
            "named": setting.named,
            "peak_anonymous": setting.memory,
            "peak_anonymous_now": setting.memory_now,
            "seconds": setting.seconds,
            "seconds_saved_estimate": setting.seconds_saved,
            "worst": setting.worst.as_ref().map(|worst| json!({
                "command": worst.command,
                "recording": worst.recording.to_string_lossy(),
                "memory_change": worst.memory,
                "time_change_estimate": worst.time,
            })),
        })
    };
    let mut objects: Vec<Value> = fleet.settings.iter().map(setting).collect();
    objects.push(json!({
        "fleet": verdict(fleet),
        "programs": fleet.programs,
        "nothing_changes": fleet.unchanged,
        "unreliable": fleet.unreliable,
        "enough_known": fleet.enough_known,
        "ram_saved": fleet.enough_saved,
    }));
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_suits_most_is_what_the_table_says() {
        let of = |settings: &[(&str, usize, usize)]| {
            let setting = |&(name, suits, named): &(&str, usize, usize)| FleetSetting {
                name: name.to_owned(),
                programs: 3,
                suits,
                named,
                ..FleetSetting::default()
            };
            let settings = settings.iter().map(setting).collect();
            verdict(&Fleet { programs: 3, settings, ..Fleet::default() }).remove(1)
        };
        let never = "thp=never suits most: 2 of 3 programs, 0 of whose verdicts name it.";
        assert_eq!(of(&[("thp=never", 2, 0), ("thp=always", 1, 1)]), never);
        let first = "mthp=16K suits most: 3 of 3 programs, 1 of whose verdicts name it.";
        assert_eq!(of(&[("thp=never", 3, 0), ("mthp=16K", 3, 1), ("mthp=64K", 3, 1)]), first);
    }
}

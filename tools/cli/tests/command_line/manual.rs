//! Help, manual pages and shell completions.

use crate::{Folder, python, quire};

/// What a command prints, which must succeed.
fn printed(arguments: &[&str]) -> String {
    let output = quire(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The commands that the help lists.
fn commands() -> Vec<String> {
    let help = printed(&["--help"]);
    let list = help.split("Commands:").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a list");
    let name = |line: &str| {
        line.strip_prefix("  ").and_then(|line| line.split_whitespace().next()?.to_owned().into())
    };
    // A description that is wrapped goes on further to the right.
    let own = list.lines().filter(|line| !line.starts_with("   "));
    own.filter_map(name).filter(|name: &String| name != "help").collect()
}

#[test]
fn the_help_of_each_command_has_examples_and_fits_the_width() {
    let commands = commands();
    assert!(commands.len() >= 12 && commands.contains(&"advise".to_owned()), "{commands:?}");
    for command in &commands {
        let help = printed(&[command, "--help"]);
        let example = format!("\n  quire {command} ");
        assert!(help.contains("\nExamples:\n") && help.contains(&example), "{command}:\n{help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 110, "{command}: {line}");
        }
    }
}

#[test]
fn completions_name_each_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&["completions", shell]);
        for command in commands() {
            assert!(script.contains(&command), "{shell}: {command}");
        }
    }
    let wrong = quire(&["completions", "tcsh"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&wrong.stderr).lines().count(), 1);
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = Folder::new("man");
    let path = folder.0.to_str().expect("text");
    assert!(printed(&["man"]).contains(".TH quire 1"));
    printed(&["man", path]);
    for command in commands() {
        let page = std::fs::read_to_string(folder.0.join(format!("quire-{command}.1"))).expect("a page");
        assert!(page.contains("Examples:"), "{command}");
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_one_line_and_exit_code_2() {
    let output = quire(&["man", &format!("{}/man", python())]);
    assert_eq!(output.status.code(), Some(2));
    let line = String::from_utf8_lossy(&output.stderr);
    assert!(line.lines().count() == 1 && line.contains("/man"), "{line}");
}

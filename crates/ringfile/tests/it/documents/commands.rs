//! What the documents' commands name exists: scripts, packages, tests, examples, features, options. A command is one of a
//! shell passage, or a call of cargo or ringfile within a sentence. Nothing is run.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{documents, files, prose, root};

/// Programs, and the sources that declare their options.
const PROGRAMS: [(&str, &str); 3] = [
    ("ringfile", "crates/ringfile-cli/src"),
    ("compare", "benchmarks/src"),
    ("ringfile-ballista", "integrations/datafusion/src"),
];
/// Words that begin so are paths from the root.
const FOLDERS: [&str; 6] = ["benchmarks/", "crates/", "fuzz/", "integrations/", "kernels/", "release/"];
/// Options of cargo whose value is the next word.
const WITH_VALUE: [&str; 8] =
    ["-p", "--manifest-path", "--path", "--test", "--example", "--bench", "--features", "--target"];

/// Returns the passages of a document in a language.
pub fn passages<'text>(text: &'text str, language: &str) -> Vec<&'text str> {
    text.split(&format!("```{language}\n")).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// Returns the commands of a passage, without comments.
pub fn commands(passage: &str) -> Vec<String> {
    let joined = passage.replace("\\\n", " ");
    let lines = joined.lines().filter(|line| !line.starts_with('#'));
    let commands = lines.flat_map(|line| line.split(" # ").next().unwrap().split(" && "));
    let commands = commands.map(|command| command.trim_matches(['(', ')', ' ']).to_owned());
    commands.filter(|command| !command.is_empty()).collect()
}

/// Returns the words of a command after `VARIABLE=value`; of `VARIABLE=$(command)`, those of the inner command.
pub fn without_variables(command: &str) -> String {
    let is_name = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let sets = |word: &&str| {
        word.split_once('=').is_some_and(|(name, value)| is_name(name) && !value.starts_with("$("))
    };
    let unquoted = command.split('"').step_by(2).collect::<Vec<_>>().join("_");
    let words = unquoted.split_whitespace().skip_while(sets).collect::<Vec<_>>().join(" ");
    match words.split_once("=$(") {
        Some((name, inner)) if is_name(name) => inner.to_owned(),
        _ => words,
    }
}

/// Returns whether a file in one of these places contains one of these texts, and there no longer word.
fn is_in(places: &[PathBuf], texts: &[String]) -> bool {
    let mut all = places.iter().filter(|place| place.exists()).flat_map(|place| files(place, ""));
    all.any(|path| {
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        texts.iter().any(|text| {
            let mut rests = found.split(text).skip(1);
            rests.any(|rest| !rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '-'))
        })
    })
}

/// Finds the subcommands and long options that the sources of a program, or the script itself, do not have.
fn check_options(sources: PathBuf, arguments: &[&str], faults: &mut Vec<String>) {
    let is_subcommand = |word: &&&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let own = arguments.split(|word| *word == "--").next().unwrap();
    let options = own.iter().filter(|word| word.starts_with("--"));
    let subcommands = own.iter().take_while(|word| sources.is_dir() && !word.starts_with('-'));
    for word in subcommands.take_while(is_subcommand).chain(options) {
        let name = word.trim_start_matches('-').split('=').next().unwrap();
        let title: String = name.split('-').map(|part| part[..1].to_uppercase() + &part[1..]).collect();
        let forms = match word.starts_with('-') {
            true => vec![format!(" {}:", name.replace('-', "_")), format!("--{name}")],
            false => vec![format!("    {title}")],
        };
        if !is_in(std::slice::from_ref(&sources), &forms) {
            faults.push(format!("{} has no {word}", sources.display()));
        }
    }
}

/// Finds what a call of cargo in a folder names and the packages there do not have.
fn check_cargo(root: &Path, folder: &Path, arguments: &[&str], faults: &mut Vec<String>) {
    let own =
        arguments.iter().copied().take_while(|word| *word != "--").filter(|word| !word.starts_with('+'));
    let own: Vec<&str> = own.collect();
    let Some(subcommand) = own.first().copied() else { return };
    let named = own.windows(2).filter(|pair| WITH_VALUE.contains(&pair[0]));
    let values =
        |option: &'static str| named.clone().filter(move |pair| pair[0] == option).map(|pair| pair[1]);
    let folder = values("--manifest-path")
        .next()
        .map_or(folder.into(), |path| root.join(path.replace("Cargo.toml", "")));
    let is_root = folder.join("crates").is_dir();
    let mut packages: Vec<PathBuf> = values("-p").map(|name| root.join("crates").join(name)).collect();
    if packages.is_empty() && is_root {
        packages =
            std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path()).collect();
    } else if packages.is_empty() {
        packages = vec![folder.clone()];
    }
    let manifests: Vec<PathBuf> = packages.iter().map(|package| package.join("Cargo.toml")).collect();
    let missing = manifests.iter().filter(|manifest| !manifest.is_file());
    faults.extend(missing.map(|manifest| format!("no {}", manifest.display())));
    let has_target = |folder: &str, name: &str| {
        let forms = [format!("{folder}/{name}.rs"), format!("{folder}/{name}/main.rs")];
        name == "NAME" || packages.iter().any(|package| forms.iter().any(|form| package.join(form).is_file()))
    };
    let is_there = |pair: &&[&str]| match pair[0] {
        "--path" => {
            pair[1].split_once("crates/").is_none_or(|(_, name)| root.join("crates").join(name).is_dir())
        }
        "--test" => has_target("tests", pair[1]),
        "--example" => has_target("examples", pair[1]),
        "--bench" => has_target("benches", pair[1]),
        // `cargo add` turns on those of another package.
        "--features" if subcommand != "add" => {
            pair[1].split(',').all(|name| is_in(&manifests, &[format!("\n{name} = [")]))
        }
        _ => true,
    };
    faults.extend(named.clone().filter(|pair| !is_there(pair)).map(|pair| format!("no {}", pair.join(" "))));
    if subcommand == "test" {
        let filters = own.windows(2).filter(|pair| !WITH_VALUE.contains(&pair[0])).map(|pair| pair[1]);
        for filter in filters.filter(|filter| !filter.starts_with('-') && *filter != "NAME") {
            let name = filter.trim_end_matches([':', '_']).rsplit("::").next().unwrap();
            if !is_in(&packages, &[format!("fn {name}"), format!("mod {name};")]) {
                faults.push(format!("no test is called {filter}"));
            }
        }
    }
    if subcommand == "run" && values("--example").next().is_none() {
        let sources = if is_root { root.join(PROGRAMS[0].1) } else { folder.join("src") };
        let of_program = arguments.splitn(2, |word| *word == "--").nth(1);
        check_options(sources, of_program.unwrap_or_default(), faults);
    }
}

/// Finds what a command in a folder names and is not there. The passage may make programs with `-o`.
fn check(root: &Path, folder: &Path, command: &str, passage: &str, faults: &mut Vec<String>) {
    let words = without_variables(command);
    let words: Vec<&str> = words.split(' ').collect();
    let paths = words.iter().map(|word| word.trim_start_matches("-I"));
    let paths = paths.filter(|path| FOLDERS.iter().any(|begin| path.starts_with(begin)));
    faults.extend(paths.filter(|path| !root.join(path).exists()).map(|path| format!("no {path}")));
    let (program, arguments) = (words[0], &words[1..]);
    let name = program.trim_start_matches("./");
    if program == "cargo" {
        check_cargo(root, folder, arguments, faults);
    } else if let Some((_, sources)) = PROGRAMS.iter().find(|(name, _)| *name == program) {
        check_options(root.join(sources), arguments, faults);
    } else if program.contains('/') && !passage.contains(&format!("-o {name}")) {
        let script = folder.join(name);
        let mode = script.metadata().map(|file| file.permissions().mode());
        if mode.is_ok_and(|mode| mode & 0o111 != 0) {
            check_options(script, arguments, faults);
        } else {
            faults.push(format!("{program} is no program"));
        }
    }
}

#[test]
fn what_commands_name_exists() {
    let Some(root) = root() else { return };
    let (mut all, mut seen) = (Vec::new(), 0);
    for (document, text) in documents(root) {
        let mut faults = Vec::new();
        for passage in passages(&text, "sh") {
            let mut folder = root.to_owned();
            for command in commands(passage) {
                match command.strip_prefix("cd ") {
                    Some("PATH/TO/RINGFILE") => {}
                    Some(inner) => folder.push(inner),
                    None => check(root, &folder, &command, passage, &mut faults),
                }
                seen += 1;
            }
            if !folder.is_dir() {
                faults.push(format!("no folder {}", folder.display()));
            }
        }
        for paragraph in prose(&text).split("\n\n") {
            let spans = paragraph.split('`').skip(1).step_by(2);
            for span in spans.filter(|span| !span.starts_with("ringfile = ")) {
                let words = without_variables(span);
                if words.starts_with("cargo ") || words.starts_with("ringfile ") {
                    check(root, root, span, "", &mut faults);
                    seen += 1;
                }
            }
        }
        all.extend(faults.into_iter().map(|fault| format!("{}: {fault}", document.display())));
    }
    assert!(seen > 150, "only {seen} commands");
    assert!(all.is_empty(), "{}", all.join("\n"));
}

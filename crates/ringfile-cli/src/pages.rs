//! `ringfile man` and `ringfile completions`: manual pages and shell completions, generated from the definition of the
//! command line.

use std::io;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::{Cli, ManArgs};
use crate::error::{Failure, io_on};
use crate::report::output::{self, OutputFile};

/// Prints the completions for a shell.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ringfile", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// Prints the main manual page, or writes all pages to a folder.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    let pages = pages().map_err(|error| Failure::Io(format!("can't make the manual pages: {error}")))?;
    let Some(folder) = &args.folder else {
        return output::print(&pages[0].1);
    };
    output::check_folder(folder, "another")?;
    let files = pages.iter().map(|(name, _)| OutputFile::check(&folder.join(name), args.force));
    let files = files.collect::<Result<Vec<_>, Failure>>()?;
    files.iter().zip(&pages).try_for_each(|(file, (_, page))| file.write_text(page))?;
    let folder = folder.canonicalize().map_err(|error| io_on("can't look at", folder, &error))?;
    let names = pages.iter().map(|(name, _)| folder.join(name).display().to_string() + "\n");
    output::print(&names.collect::<String>())
}

/// Returns all pages, the main one first: each file's name and text.
fn pages() -> io::Result<Vec<(String, String)>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages)?;
    Ok(pages)
}

fn add(command: &clap::Command, pages: &mut Vec<(String, String)>) -> io::Result<()> {
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    pages.push((page.get_filename(), String::from_utf8_lossy(&text).into_owned()));
    command.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| add(below, pages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let pages = pages().expect("pages");
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[0], "ringfile.1");
        for name in ["ringfile-perf.1", "ringfile-perf-file.1", "ringfile-perf-buffers.1", "ringfile-man.1"] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        for (name, page) in &pages {
            assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}");
        }
    }
}

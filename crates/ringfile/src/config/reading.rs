//! Reads settings from TOML text and from the environment.
//!
//! Knows the settings only through their table. Invariants: no text makes it panic, and an error names the line or the
//! variable, what is wrong there, and what is allowed, in one line.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use ringfile_buffer::internal::event;
use toml::de::{DeTable, DeValue};

use super::settings::{PREFIX, SETTINGS, Setting, Written, variable};
use super::values::Config;
use crate::error::{Error, Result};

/// The maximum length of a file of settings: far more than all settings with comments need.
const LONGEST: u64 = 1 << 20;
/// Characters of a wrong value that an error shows.
const SHOWN: usize = 40;
/// A name that differs by at most this many letters is reported as a misspelt setting.
const MISSPELT: usize = 2;

pub(super) fn text_of(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes));
    if let Err(error) = read {
        let failed = Error::from_io(&error, "reading the settings").on(Some(path));
        return Err(match error.kind() {
            ErrorKind::NotFound => failed.because("`ringfile perf buffers --emit-config FILE` writes them"),
            ErrorKind::IsADirectory => failed.because("this is a folder: name the settings file in it"),
            _ => failed,
        });
    }
    let wrong = |why| Error::new(ErrorKind::InvalidData, "reading the settings").on(Some(path)).because(why);
    if bytes.len() as u64 > LONGEST {
        return Err(wrong("the file is longer than 1 MiB: name a settings file"));
    }
    String::from_utf8(bytes).map_err(|_| wrong("the file is not text in UTF-8: name a settings file"))
}

/// TOML text, and the file that it was read from, if any.
pub(super) struct SettingsText<'a> {
    pub(super) text: &'a str,
    pub(super) path: Option<&'a Path>,
    /// The table that has the settings, such as `storage.io`; `None` if they are in none.
    pub(super) table: Option<&'a str>,
}

impl SettingsText<'_> {
    pub(super) fn settings(&self) -> Result<Config> {
        let whole = DeTable::parse(self.text).map_err(|error| {
            let at = error.span().unwrap_or_default();
            let line = self.text.lines().nth(self.lines_before(&at)).unwrap_or_default();
            self.error(&at, no_toml(line, error.message()))
        })?;
        let mut fields: Vec<_> = self.table_of(whole.get_ref())?.iter().collect();
        // Reports the error that comes first in the file, not the first in the alphabet.
        fields.sort_by_key(|(name, _)| name.span().start);
        let mut config = Config::new();
        for (name, value) in fields {
            let is_table = value.get_ref().is_table();
            let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name.get_ref().as_ref())
            else {
                return Err(self.error(&name.span(), unknown(name.get_ref(), is_table)));
            };
            if !(setting.set)(&mut config, value_of(value.get_ref())) {
                let written = self.text.get(value.span()).filter(|_| !is_table).unwrap_or("a table");
                return Err(self.error(&value.span(), refused(setting.name, written, setting.allowed)));
            }
        }
        Ok(config)
    }

    /// Returns the table that has the settings.
    fn table_of<'t, 'i>(&self, whole: &'t DeTable<'i>) -> Result<&'t DeTable<'i>> {
        let Some(name) = self.table else { return Ok(whole) };
        let mut parts = name.split('.');
        let found = parts.try_fold(whole, |table, part| {
            let (_, value) = table.iter().find(|(key, _)| key.get_ref() == part)?;
            value.get_ref().as_table()
        });
        found.ok_or_else(|| {
            let why = format!("there is no table `[{}]`", shown(name, SHOWN));
            Error::new(ErrorKind::InvalidData, "reading the settings").on(self.path).because(why)
        })
    }

    fn error(&self, at: &Range<usize>, why: String) -> Error {
        let of = if self.path.is_none() { " of the settings" } else { "" };
        let what = format!("reading line {}{of}", self.lines_before(at) + 1);
        Error::new(ErrorKind::InvalidData, what).on(self.path).because(why)
    }

    fn lines_before(&self, at: &Range<usize>) -> usize {
        self.text.get(..at.start).unwrap_or(self.text).matches('\n').count()
    }
}

/// Overrides settings with those of the environment. `get` looks up a variable.
pub(super) fn environment(config: &mut Config, get: impl Fn(&str) -> Option<OsString>) -> Result<()> {
    let wrong = |why: String| Error::new(ErrorKind::InvalidInput, "reading the environment").because(why);
    SETTINGS.iter().try_for_each(|setting| override_by(setting, config, &get).map_err(wrong))
}

/// Overrides a setting with that of the environment, or returns what is wrong with the variable's value.
fn override_by(
    setting: &Setting,
    config: &mut Config,
    get: impl Fn(&str) -> Option<OsString>,
) -> std::result::Result<(), String> {
    let variable = setting.variable();
    let Some(value) = get(&variable).filter(|value| !value.is_empty()) else { return Ok(()) };
    let is_allowed = value.to_str().is_some_and(|text| (setting.set)(config, value_of_text(text)));
    let refusal = || refused(&variable, &value.to_string_lossy(), &setting.allowed.replace('"', ""));
    is_allowed.then_some(()).ok_or_else(refusal)
}

/// Returns what is wrong with each of these variables: a name that is close to that of a setting, or a value that is not
/// allowed.
pub(super) fn wrong_variables(all: &[(OsString, OsString)]) -> Vec<String> {
    let get = |name: &str| Some(all.iter().find(|(variable, _)| variable == name)?.1.clone());
    let values = SETTINGS.iter().filter_map(|setting| override_by(setting, &mut Config::new(), get).err());
    all.iter().filter_map(|(variable, _)| misspelt(variable.to_str()?)).chain(values).collect()
}

/// Warns of variables of the environment with names that are close to those of settings: once in a process.
pub(super) fn warn_of_misspelt() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if IS_DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    for why in std::env::vars_os().filter_map(|(variable, _)| misspelt(variable.to_str()?)) {
        event::emit(|| tracing::warn!("{why}"));
    }
}

/// Returns which variable is probably meant by another one.
fn misspelt(name: &str) -> Option<String> {
    let upper = name.to_uppercase();
    let known = SETTINGS.iter().map(|setting| setting.name).chain(["disable"]);
    let meant = variable(closest(upper.strip_prefix(PREFIX)?, known)?);
    (name != meant).then(|| format!("`{}` is not a setting: did you mean `{meant}`?", shown(name, SHOWN)))
}

fn value_of<'a>(value: &'a DeValue<'_>) -> Written<'a> {
    match value {
        DeValue::Integer(number) => {
            u64::from_str_radix(number.as_str(), number.radix()).map_or(Written::Other, Written::Number)
        }
        DeValue::Boolean(on) => Written::Switch(*on),
        DeValue::String(text) => Written::Text(text),
        _ => Written::Other,
    }
}

/// Interprets the text of an environment variable, which has no quotes: a number or a boolean if it looks like one.
fn value_of_text(text: &str) -> Written<'_> {
    match text {
        "true" => Written::Switch(true),
        "false" => Written::Switch(false),
        _ => text.parse().map_or(Written::Text(text), Written::Number),
    }
}

/// Returns why a line is not TOML, from the parser's message.
fn no_toml(line: &str, message: &str) -> String {
    let (line, message) = (shown(line.trim(), SHOWN), shown(message, usize::MAX));
    let advice = match &*message {
        "duplicate key" => "keep one",
        _ => r#"write `depth = 64`, and words and units in quotes, as `capacity = "64MiB"`"#,
    };
    format!("`{line}`: {message}; {advice}")
}

fn refused(name: &str, written: &str, allowed: &str) -> String {
    format!("`{name}` can't be {}: give {allowed}", shown(written, SHOWN))
}

fn unknown(name: &str, is_table: bool) -> String {
    let known = SETTINGS.each_ref().map(|setting| setting.name).join(", ");
    let closest = closest(name, SETTINGS.iter().map(|setting| setting.name));
    let name = shown(name, SHOWN);
    match closest {
        Some(meant) => format!("unknown field `{name}`: did you mean `{meant}`? known: {known}"),
        None if is_table => {
            format!("unknown table `{name}`: `Config::load_table` reads settings in a table; known: {known}")
        }
        None => format!("unknown field `{name}`: remove it; known: {known}"),
    }
}

/// Returns which of the known names is probably meant.
fn closest(name: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let name = name.to_lowercase();
    let closest = known.map(|known| (strsim::osa_distance(known, &name), known)).min();
    closest.filter(|(distance, _)| *distance <= MISSPELT).map(|(_, meant)| meant)
}

/// Returns a text for use within one line: cut to `longest` characters, with control characters replaced.
fn shown(text: &str, longest: usize) -> String {
    let mut shown: String =
        text.chars().take(longest).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(longest).is_some() {
        shown.push('…');
    }
    shown
}

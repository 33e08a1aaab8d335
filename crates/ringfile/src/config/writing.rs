//! Settings as TOML text, with a comment for each.
//!
//! Invariants: the text is read back as the same settings, whatever the comments say.

use std::fmt;

use super::Config;
use super::settings::SETTINGS;

/// Returns the settings as TOML, each below a comment that explains it. Settings without a value are left out.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_toml_with(|_| None))
    }
}

impl Config {
    /// Writes the settings as TOML, as [`Display`](fmt::Display) does, with additional comments: `comment` is called
    /// with the name of each setting that is present, and may return any text, for instance the measurement behind the
    /// value.
    ///
    /// ```
    /// let config = ringfile::Config::new().with_depth(64).with_direct(true);
    /// let text = config.to_toml_with(|name| match name {
    ///     "depth" => Some("128 gave 1 % more, inside the spread.".into()),
    ///     _ => None,
    /// });
    /// let lines: Vec<&str> = text.lines().collect();
    /// assert_eq!(lines[1..4], ["# 128 gave 1 % more, inside the spread.", "depth = 64", ""]);
    /// assert_eq!(ringfile::Config::parse(&text)?, config);
    /// # Ok::<(), ringfile::Error>(())
    /// ```
    #[must_use]
    pub fn to_toml_with(&self, comment: impl Fn(&str) -> Option<String>) -> String {
        let mut text = String::new();
        for setting in &SETTINGS {
            let Some(value) = (setting.get)(self) else { continue };
            if !text.is_empty() {
                text.push('\n');
            }
            add_comment(&mut text, setting.about);
            if let Some(further) = comment(setting.name) {
                add_comment(&mut text, &further);
            }
            text.push_str(&format!("{} = {value}\n", setting.name));
        }
        text
    }
}

/// TOML has no control characters in comments.
fn add_comment(text: &mut String, comment: &str) {
    for line in comment.lines() {
        text.push_str("# ");
        text.extend(line.chars().map(|c| if c.is_control() { ' ' } else { c }));
        text.push('\n');
    }
}

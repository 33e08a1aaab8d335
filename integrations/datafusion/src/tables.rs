//! A folder of Parquet files as tables.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use datafusion::prelude::{ParquetReadOptions, SessionContext};

/// Registers a table for each Parquet file in a folder, and for each folder in it that contains any. A table's name is
/// that of its file, without the extension, or of its folder. Returns the names in order.
///
/// # Errors
/// If the folder cannot be read or has no Parquet files, if two tables would have the same name, or if a file is not a
/// Parquet file.
pub async fn register(context: &SessionContext, folder: &Path) -> Result<Vec<String>> {
    let folder = folder.canonicalize().with_context(|| format!("cannot open {}", folder.display()))?;
    let mut names = Vec::new();
    for path in entries(&folder)? {
        let is_table =
            is_parquet(&path) || path.is_dir() && entries(&path)?.iter().any(|path| is_parquet(path));
        if !is_table {
            continue;
        }
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let name = name
            .and_then(OsStr::to_str)
            .with_context(|| format!("{}: the name is not UTF-8", path.display()))?;
        if names.iter().any(|other| other == name) {
            bail!("{} has both a file and a folder for the table {name}", folder.display());
        }
        let place = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
        // The name is quoted, which names such as `part-0` require.
        context
            .register_parquet(
                format!("\"{}\"", name.replace('"', "\"\"")),
                place,
                ParquetReadOptions::default(),
            )
            .await
            .with_context(|| format!("cannot read {} as Parquet", path.display()))?;
        names.push(name.to_owned());
    }
    if names.is_empty() {
        bail!("{} contains no Parquet files (*.parquet), and no folder that contains any", folder.display());
    }
    Ok(names)
}

/// Returns the Parquet files of a folder's tables, in order.
///
/// # Errors
/// If a folder cannot be read.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in entries(folder)? {
        if path.is_dir() {
            files.extend(entries(&path)?.into_iter().filter(|path| is_parquet(path)));
        } else if is_parquet(&path) {
            files.push(path);
        }
    }
    Ok(files)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
    };
    let mut entries = read().with_context(|| format!("cannot list {}", folder.display()))?;
    entries.sort();
    Ok(entries)
}

fn is_parquet(path: &Path) -> bool {
    path.is_file() && path.extension() == Some(OsStr::new("parquet"))
}

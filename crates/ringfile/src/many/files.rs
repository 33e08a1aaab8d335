//! The files of a batch or a queue, by number, so that an operation touches no shared count.

use std::sync::Arc;

use crate::file::File;

/// Files in use, each listed once, under the number of its target, which is small and unique among open files.
#[derive(Default)]
pub(super) struct Files(Vec<Option<NumberedFile>>);

struct NumberedFile {
    file: File,
    uses: usize,
}

impl Files {
    /// Returns the number of a file, and counts one more operation on it.
    #[inline]
    pub(super) fn enter(&mut self, file: &File) -> u32 {
        let number = file.target().number;
        match self.0.get_mut(number as usize) {
            Some(Some(entry)) => {
                debug_assert!(Arc::ptr_eq(entry.file.target(), file.target()));
                entry.uses += 1;
            }
            _ => self.add(file),
        }
        number
    }

    #[cold]
    fn add(&mut self, file: &File) {
        let index = file.target().number as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index] = Some(NumberedFile { file: file.clone(), uses: 1 });
    }

    /// Notes that the result of an operation was taken. A file without operations is released.
    #[inline]
    pub(super) fn leave(&mut self, number: u32) {
        let place = &mut self.0[number as usize];
        if let Some(entry) = place {
            entry.uses -= 1;
            if entry.uses == 0 {
                *place = None;
            }
        }
    }

    /// Returns whether some are paths, and no open files.
    pub(super) fn have_paths(&self) -> bool {
        self.0.iter().flatten().any(|entry| !entry.file.target().has_fd())
    }

    /// Returns the file with a number from [`enter`](Self::enter) that [`leave`](Self::leave) has not taken back.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub(super) fn get(&self, number: u32) -> &File {
        match &self.0[number as usize] {
            Some(entry) => &entry.file,
            None => unreachable!("a file is kept for as long as operations name it"),
        }
    }
}

//! The files of a batch or a queue, by number, so that an operation costs no count that threads share.

use std::sync::Arc;

use crate::file::File;

/// Files in use, each once, under the number of its target, which is small and unique among open files.
#[derive(Default)]
pub(super) struct Files(Vec<Option<Entry>>);

struct Entry {
    file: File,
    uses: usize,
}

impl Files {
    /// The number of a file, for one more operation on it.
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
        self.0[index] = Some(Entry { file: file.clone(), uses: 1 });
    }

    /// Notes that the result of an operation was taken: a file without operations is given up.
    #[inline]
    pub(super) fn leave(&mut self, number: u32) {
        if let Some(place) = self.0.get_mut(number as usize)
            && let Some(entry) = place
        {
            entry.uses -= 1;
            if entry.uses == 0 {
                *place = None;
            }
        }
    }

    /// The file with a number that [`enter`](Self::enter) gave and [`leave`](Self::leave) has not taken back.
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

//! Where do bytes lie that stay for a while? One behind the other, in a few large pieces of memory.
//!
//! An allocation each would be touched page by page, and a fault for each page costs more than copying it.

use std::sync::{Arc, Mutex, PoisonError};

use super::{ALIGNMENT, Memory};

/// The bytes of a board. What would take most of one has its own.
const BOARD_BYTES: usize = 32 << 20;

/// Boards, the last of which has room.
#[derive(Default)]
pub(crate) struct Shelf(Mutex<Option<Board>>);

struct Board {
    memory: Arc<Memory>,
    used: usize,
}

/// Room for bytes, that nobody else knows of yet.
pub(crate) struct Space(Piece);

/// Bytes that are not changed any more.
#[derive(Clone)]
pub(crate) struct Piece {
    memory: Arc<Memory>,
    from: usize,
    bytes: usize,
}

impl Shelf {
    /// Room for so many bytes.
    pub(crate) fn take(&self, bytes: usize) -> Space {
        if bytes > BOARD_BYTES / 2 {
            return Space(Piece { memory: Arc::new(Memory::new(bytes)), from: 0, bytes });
        }
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let board = match &mut *last {
            Some(board) if board.used + bytes <= board.memory.len() => board,
            last => last.insert(Board { memory: Arc::new(Memory::new(BOARD_BYTES)), used: 0 }),
        };
        let from = board.used;
        board.used = (from + bytes).next_multiple_of(ALIGNMENT);
        Space(Piece { memory: board.memory.clone(), from, bytes })
    }
}

impl Space {
    /// The bytes, to be written.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        let Piece { memory, from, bytes } = &self.0;
        // SAFETY: these bytes were given to this space alone (`used` only grows), and it is borrowed mutably.
        unsafe { memory.part_mut(*from, *bytes) }
    }

    /// They are as they shall be.
    pub(crate) fn done(self) -> Piece {
        self.0
    }
}

impl Piece {
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the space that these bytes were given to is gone (`Space::done`); all that are left only read them.
        unsafe { self.memory.part(self.from, self.bytes) }
    }

    /// The board that it lies on, which goes when all that lies on it has gone.
    pub(crate) fn board(&self) -> *const u8 {
        self.memory.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_side_by_side_and_keep_what_was_written() {
        let shelf = Shelf::default();
        let pieces: Vec<Piece> = (0..200_usize)
            .map(|at| {
                let mut space = shelf.take(if at == 100 { 20 << 20 } else { at * 3001 });
                space.as_mut_slice().fill(at as u8);
                space.done()
            })
            .collect();
        for (at, piece) in pieces.iter().enumerate() {
            assert_eq!(piece.as_slice().len(), if at == 100 { 20 << 20 } else { at * 3001 });
            assert!(piece.as_slice().iter().all(|byte| *byte == at as u8), "piece {at}");
            assert!(piece.as_slice().as_ptr().addr().is_multiple_of(ALIGNMENT), "piece {at}");
        }
        let mut boards: Vec<_> = pieces.iter().map(Piece::board).collect();
        boards.dedup();
        boards.sort();
        boards.dedup();
        assert_eq!(boards.len(), 3, "two boards of small ones, and the large one's own");
    }
}

//! Rows of a table, by their numbers.

use burn_tensor::Tensor;

use super::{Numbers, Operation, is_here, plain, run};

/// Of a table `[entries, width]` the rows with these numbers, flat.
pub fn embedding(table: Tensor<2>, places: Vec<u32>) -> Tensor<1> {
    if !is_here(&table) {
        return plain::embedding(table, &places);
    }
    let [entries, width] = table.dims();
    debug_assert!(places.iter().all(|place| (*place as usize) < entries));
    run(Embedding { entries, width, places }, [table.reshape([-1])])
}

#[derive(Debug)]
struct Embedding {
    entries: usize,
    width: usize,
    places: Vec<u32>,
}

impl Operation<1> for Embedding {
    type Kept = ();

    fn forward(&self, [table]: [Numbers; 1]) -> (Vec<f32>, ()) {
        let table: &[f32] = &table;
        let row = |place: &u32| &table[*place as usize * self.width..][..self.width];
        (self.places.iter().flat_map(row).copied().collect(), ())
    }

    fn backward(self, (): (), gradient: Numbers, _: [bool; 1]) -> [Vec<f32>; 1] {
        let mut of_table = vec![0.0; self.entries * self.width];
        for (place, gradient) in self.places.iter().zip(gradient.chunks_exact(self.width)) {
            let row = &mut of_table[*place as usize * self.width..][..self.width];
            for (sum, value) in row.iter_mut().zip(gradient) {
                *sum += value;
            }
        }
        [of_table]
    }
}

//! The power spectra of eight overlapping frames at once.
//!
//! Whisper's frames have 400 samples, which no power-of-two transform fits, and its logarithm reaches down to 1e-8 of the
//! loudest power, where single precision has nothing left to say: the transform has to be done in double. So that this
//! costs nothing, it is done for eight frames together: two frames make one complex sequence (their spectra come apart
//! by symmetry), and four of those lie side by side in a vector register. Every operation is then one instruction for
//! four sequences, no value ever changes lanes, and the powers come out frame beside frame, as the mel filters want them.
//!
//! 400 = 4 · 4 · 5 · 5: four passes, in place.

use std::f64::consts::TAU;

pub(super) const WINDOW: usize = 400;
pub(super) const HOP: usize = 160;
pub(super) const BINS: usize = WINDOW / 2 + 1;
/// Frames of one block.
pub(super) const BLOCK: usize = 8;
/// Complex sequences of one block.
const LANES: usize = BLOCK / 2;
/// Hops that the frames of a block reach over.
const HOPS: usize = BLOCK + (WINDOW - 1) / HOP;
/// Room for them, in whole cache lines.
const WIDTH: usize = HOPS.next_multiple_of(4);
/// Samples that the frames of a block reach over.
pub(super) const SPAN: usize = (BLOCK - 1) * HOP + WINDOW;

/// One number of each of the sequences, as it is kept in memory.
#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
struct Kept {
    re: [f64; LANES],
    im: [f64; LANES],
}

/// Cosine and sine.
type Turn = (f64, f64);

/// The tables of the transform.
pub(super) struct Spectrum {
    /// For each sample of a frame, its weight, and where in `Bench::columns` the first frame has it.
    window: [(f64, u32); WINDOW],
    /// Where the bin and its mirror image are when the transform is done.
    places: [(u16, u16); BINS],
    /// `turns[n][p]`: the turn by `n · k` 400ths, for the `k` at place `p`.
    turns: [[Turn; 16]; 25],
    turns_16: [[Turn; 4]; 4],
    turns_25: [[Turn; 5]; 5],
    fifths: [Turn; 2],
}

/// Room to work in.
pub(super) struct Bench {
    /// The samples of the block, hop beside hop: `columns[r][m]` is sample `r` of hop `m`.
    columns: [[f32; WIDTH]; HOP],
    values: [Kept; WINDOW],
}

#[expect(
    clippy::large_stack_arrays,
    reason = "on the stack for a moment, once a thread, on its way into a box"
)]
impl Default for Bench {
    fn default() -> Self {
        Self { columns: [[0.0; WIDTH]; HOP], values: [Kept::default(); WINDOW] }
    }
}

impl Spectrum {
    pub(super) fn new() -> Self {
        let turn = |part: usize, of: usize| {
            let (sine, cosine) = (-TAU * part as f64 / of as f64).sin_cos();
            (cosine, sine)
        };
        Self {
            // Periodic Hann; by half, because taking two frames apart gives twice their spectra.
            window: std::array::from_fn(|n| {
                let weight = 0.25 - 0.25 * (TAU * n as f64 / WINDOW as f64).cos();
                (weight, ((n % HOP) * WIDTH + n / HOP) as u32)
            }),
            places: std::array::from_fn(|bin| (place(bin), place((WINDOW - bin) % WINDOW))),
            turns: std::array::from_fn(|n| std::array::from_fn(|p| turn(n * (p / 4 + 4 * (p % 4)), WINDOW))),
            turns_16: std::array::from_fn(|a| std::array::from_fn(|c| turn(a * c, 16))),
            turns_25: std::array::from_fn(|a| std::array::from_fn(|c| turn(a * c, 25))),
            fifths: [turn(1, 5), turn(2, 5)],
        }
    }

    /// The powers of the eight frames that start at every 160th of `samples`: `powers[bin][frame]`.
    pub(super) fn powers(&self, samples: &[f32], bench: &mut Bench, powers: &mut [[f32; BLOCK]; BINS]) {
        let work = Transform { tables: self, samples: &samples[..SPAN], bench, powers };
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = pulp::x86::V3::try_new() {
            return avx2.vectorize(OnAvx2(avx2, work));
        }
        work.run(Plain);
    }
}

/// Where a bin is when the transform is done: `bin = k1 + 16 · k2`, and both halves have their digits exchanged.
fn place(bin: usize) -> u16 {
    let (k1, k2) = (bin % 16, bin / 16);
    (((k2 % 5) * 5 + k2 / 5) * 16 + (k1 % 4) * 4 + k1 / 4) as u16
}

struct Transform<'a> {
    tables: &'a Spectrum,
    samples: &'a [f32],
    bench: &'a mut Bench,
    powers: &'a mut [[f32; BLOCK]; BINS],
}

/// Everything that is to be compiled for the instruction set of its caller must be inlined into it.
macro_rules! inlined {
    ($($item:item)*) => {$(
        #[inline(always)]
        #[allow(clippy::inline_always, reason = "compiled for the instruction set of the caller")]
        $item
    )*};
}

/// The transform, to be compiled for AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
struct OnAvx2<'a>(pulp::x86::V3, Transform<'a>);

#[cfg(target_arch = "x86_64")]
impl pulp::NullaryFnOnce for OnAvx2<'_> {
    type Output = ();

    inlined! {
        fn call(self) {
            self.1.run(self.0);
        }
    }
}

impl Transform<'_> {
    inlined! {
        fn run<A: Arithmetic>(self, a: A) {
            let Self { tables, samples, bench: Bench { columns, values }, powers } = self;
            lay_out(samples, columns);
            let columns = columns.as_flattened();
            // Four passes over the same memory. Each takes four or five numbers, transforms them in registers, and puts
            // them back where they were; where that leaves the bins is written down in `tables.places`.
            for (n2, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                for first in 0..4 {
                    let take = |b: usize| {
                        let (weight, place) = tables.window[25 * (first + 4 * b) + n2];
                        let column = &columns[place as usize..place as usize + BLOCK];
                        let (re, im) = (a.widen(&column[..LANES]), a.widen(&column[LANES..]));
                        let weight = a.splat(weight);
                        (a.mul(re, weight), a.mul(im, weight))
                    };
                    let z = dft_4(a, [take(0), take(1), take(2), take(3)]);
                    let turns = &tables.turns_16[first];
                    values[first] = keep(a, z[0]);
                    values[4 + first] = keep(a, turned(a, z[1], turns[1]));
                    values[8 + first] = keep(a, turned(a, z[2], turns[2]));
                    values[12 + first] = keep(a, turned(a, z[3], turns[3]));
                }
                for (values, turns) in values.as_chunks_mut::<4>().0.iter_mut().zip(tables.turns[n2].as_chunks::<4>().0) {
                    let z = dft_4(a, [fetch(a, &values[0]), fetch(a, &values[1]), fetch(a, &values[2]), fetch(a, &values[3])]);
                    values[0] = keep(a, turned(a, z[0], turns[0]));
                    values[1] = keep(a, turned(a, z[1], turns[1]));
                    values[2] = keep(a, turned(a, z[2], turns[2]));
                    values[3] = keep(a, turned(a, z[3], turns[3]));
                }
            }
            for p in 0..16 {
                for first in 0..5 {
                    let at = |b: usize| (first + 5 * b) * 16 + p;
                    let x = [at(0), at(1), at(2), at(3), at(4)].map(|at| fetch(a, &values[at]));
                    let z = dft_5(a, x, tables.fifths);
                    let turns = &tables.turns_25[first];
                    values[at(0)] = keep(a, z[0]);
                    values[at(1)] = keep(a, turned(a, z[1], turns[1]));
                    values[at(2)] = keep(a, turned(a, z[2], turns[2]));
                    values[at(3)] = keep(a, turned(a, z[3], turns[3]));
                    values[at(4)] = keep(a, turned(a, z[4], turns[4]));
                }
                for c in 0..5 {
                    let at = |d: usize| (d + 5 * c) * 16 + p;
                    let x = [at(0), at(1), at(2), at(3), at(4)].map(|at| fetch(a, &values[at]));
                    let z = dft_5(a, x, tables.fifths);
                    values[at(0)] = keep(a, z[0]);
                    values[at(1)] = keep(a, z[1]);
                    values[at(2)] = keep(a, z[2]);
                    values[at(3)] = keep(a, z[3]);
                    values[at(4)] = keep(a, z[4]);
                }
            }
            for (powers, places) in powers.iter_mut().zip(&tables.places) {
                let (z, y) = (fetch(a, &values[places.0 as usize]), fetch(a, &values[places.1 as usize]));
                let first = (a.add(z.0, y.0), a.sub(z.1, y.1));
                let second = (a.add(z.1, y.1), a.sub(y.0, z.0));
                let power = |(re, im)| a.narrow(a.mul_add(re, re, a.mul(im, im)));
                powers[..LANES].copy_from_slice(&power(first));
                powers[LANES..].copy_from_slice(&power(second));
            }
        }
    }
}

inlined! {
    /// Lays hops side by side, so that the same sample of neighbouring frames is one load. The last hop is a part.
    fn lay_out(samples: &[f32], columns: &mut [[f32; WIDTH]; HOP]) {
        const WHOLE: usize = SPAN / HOP;
        const FOURS: usize = WHOLE / 4 * 4;
        // Four by four, which stays in registers.
        for (r, columns) in columns.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            for m in (0..FOURS).step_by(4) {
                let rows: [[f32; 4]; 4] = std::array::from_fn(|row| {
                    let from = (m + row) * HOP + 4 * r;
                    [samples[from], samples[from + 1], samples[from + 2], samples[from + 3]]
                });
                for (at, column) in columns.iter_mut().enumerate() {
                    column[m..m + 4].copy_from_slice(&[rows[0][at], rows[1][at], rows[2][at], rows[3][at]]);
                }
            }
        }
        for m in FOURS..WHOLE {
            for (column, sample) in columns.iter_mut().zip(&samples[m * HOP..]) {
                column[m] = *sample;
            }
        }
        for (column, sample) in columns.iter_mut().zip(&samples[WHOLE * HOP..]) {
            column[WHOLE] = *sample;
        }
    }

    fn fetch<A: Arithmetic>(a: A, kept: &Kept) -> Complex<A> {
        (a.load(kept.re), a.load(kept.im))
    }

    fn keep<A: Arithmetic>(a: A, (re, im): Complex<A>) -> Kept {
        Kept { re: a.store(re), im: a.store(im) }
    }

    fn plus<A: Arithmetic>(a: A, x: Complex<A>, y: Complex<A>) -> Complex<A> {
        (a.add(x.0, y.0), a.add(x.1, y.1))
    }

    fn minus<A: Arithmetic>(a: A, x: Complex<A>, y: Complex<A>) -> Complex<A> {
        (a.sub(x.0, y.0), a.sub(x.1, y.1))
    }

    fn turned<A: Arithmetic>(a: A, (re, im): Complex<A>, (c, s): Turn) -> Complex<A> {
        let (c, s) = (a.splat(c), a.splat(s));
        (a.mul_sub(re, c, a.mul(im, s)), a.mul_add(re, s, a.mul(im, c)))
    }

    /// `x + i·y`
    fn plus_i<A: Arithmetic>(a: A, x: Complex<A>, y: Complex<A>) -> Complex<A> {
        (a.sub(x.0, y.1), a.add(x.1, y.0))
    }

    /// `x − i·y`
    fn minus_i<A: Arithmetic>(a: A, x: Complex<A>, y: Complex<A>) -> Complex<A> {
        (a.add(x.0, y.1), a.sub(x.1, y.0))
    }

    fn dft_4<A: Arithmetic>(a: A, x: [Complex<A>; 4]) -> [Complex<A>; 4] {
        let (even, odd) = (plus(a, x[0], x[2]), plus(a, x[1], x[3]));
        let (even_rest, odd_rest) = (minus(a, x[0], x[2]), minus(a, x[1], x[3]));
        [plus(a, even, odd), minus_i(a, even_rest, odd_rest), minus(a, even, odd), plus_i(a, even_rest, odd_rest)]
    }

    fn dft_5<A: Arithmetic>(a: A, x: [Complex<A>; 5], [(c1, s1), (c2, s2)]: [Turn; 2]) -> [Complex<A>; 5] {
        let (c1, s1, c2, s2) = (a.splat(c1), a.splat(s1), a.splat(c2), a.splat(s2));
        let (p1, m1) = (plus(a, x[1], x[4]), minus(a, x[1], x[4]));
        let (p2, m2) = (plus(a, x[2], x[3]), minus(a, x[2], x[3]));
        let even = |p, q| {
            let one = |x, y, z| a.mul_add(z, q, a.mul_add(y, p, x));
            (one(x[0].0, p1.0, p2.0), one(x[0].1, p1.1, p2.1))
        };
        let (e1, e2) = (even(c1, c2), even(c2, c1));
        let o1 = (a.mul_add(m1.0, s1, a.mul(m2.0, s2)), a.mul_add(m1.1, s1, a.mul(m2.1, s2)));
        let o2 = (a.mul_sub(m1.0, s2, a.mul(m2.0, s1)), a.mul_sub(m1.1, s2, a.mul(m2.1, s1)));
        let sum = plus(a, x[0], plus(a, p1, p2));
        [sum, plus_i(a, e1, o1), plus_i(a, e2, o2), minus_i(a, e2, o2), minus_i(a, e1, o1)]
    }
}

type Complex<A> = (<A as Arithmetic>::V, <A as Arithmetic>::V);

/// How four numbers at a time are computed with.
trait Arithmetic: Copy {
    type V: Copy;

    fn load(self, values: [f64; LANES]) -> Self::V;
    fn store(self, v: Self::V) -> [f64; LANES];
    fn widen(self, values: &[f32]) -> Self::V;
    fn narrow(self, v: Self::V) -> [f32; LANES];
    fn splat(self, value: f64) -> Self::V;
    fn add(self, x: Self::V, y: Self::V) -> Self::V;
    fn sub(self, x: Self::V, y: Self::V) -> Self::V;
    fn mul(self, x: Self::V, y: Self::V) -> Self::V;
    /// `x · y + z`
    fn mul_add(self, x: Self::V, y: Self::V, z: Self::V) -> Self::V;
    /// `x · y − z`
    fn mul_sub(self, x: Self::V, y: Self::V, z: Self::V) -> Self::V;
}

/// As any machine can.
#[derive(Clone, Copy)]
struct Plain;

impl Arithmetic for Plain {
    type V = [f64; LANES];

    inlined! {
        fn load(self, values: [f64; LANES]) -> Self::V {
            values
        }

        fn store(self, v: Self::V) -> [f64; LANES] {
            v
        }

        fn widen(self, values: &[f32]) -> Self::V {
            std::array::from_fn(|lane| f64::from(values[lane]))
        }

        fn narrow(self, v: Self::V) -> [f32; LANES] {
            v.map(|value| value as f32)
        }

        fn splat(self, value: f64) -> Self::V {
            [value; LANES]
        }

        fn add(self, x: Self::V, y: Self::V) -> Self::V {
            std::array::from_fn(|lane| x[lane] + y[lane])
        }

        fn sub(self, x: Self::V, y: Self::V) -> Self::V {
            std::array::from_fn(|lane| x[lane] - y[lane])
        }

        fn mul(self, x: Self::V, y: Self::V) -> Self::V {
            std::array::from_fn(|lane| x[lane] * y[lane])
        }

        fn mul_add(self, x: Self::V, y: Self::V, z: Self::V) -> Self::V {
            std::array::from_fn(|lane| x[lane] * y[lane] + z[lane])
        }

        fn mul_sub(self, x: Self::V, y: Self::V, z: Self::V) -> Self::V {
            std::array::from_fn(|lane| x[lane] * y[lane] - z[lane])
        }
    }
}

/// AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
impl Arithmetic for pulp::x86::V3 {
    type V = pulp::f64x4;

    inlined! {
        fn load(self, values: [f64; LANES]) -> Self::V {
            pulp::cast(values)
        }

        fn store(self, v: Self::V) -> [f64; LANES] {
            pulp::cast(v)
        }

        fn widen(self, values: &[f32]) -> Self::V {
            self.convert_f32x4_to_f64x4(pulp::f32x4(values[0], values[1], values[2], values[3]))
        }

        fn narrow(self, v: Self::V) -> [f32; LANES] {
            pulp::cast(self.convert_f64x4_to_f32x4(v))
        }

        fn splat(self, value: f64) -> Self::V {
            self.splat_f64x4(value)
        }

        fn add(self, x: Self::V, y: Self::V) -> Self::V {
            self.add_f64x4(x, y)
        }

        fn sub(self, x: Self::V, y: Self::V) -> Self::V {
            self.sub_f64x4(x, y)
        }

        fn mul(self, x: Self::V, y: Self::V) -> Self::V {
            self.mul_f64x4(x, y)
        }

        fn mul_add(self, x: Self::V, y: Self::V, z: Self::V) -> Self::V {
            self.mul_add_f64x4(x, y, z)
        }

        fn mul_sub(self, x: Self::V, y: Self::V, z: Self::V) -> Self::V {
            self.mul_sub_f64x4(x, y, z)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use realfft::RealFftPlanner;

    #[test]
    fn equal_to_a_transform_of_each_frame() {
        let samples: Vec<f32> =
            (0..SPAN).map(|i| ((i * i) as f32 * 0.001).sin() + 0.3 * (i as f32 * 0.7).cos()).collect();
        let mut powers = [[0.0; BLOCK]; BINS];
        Spectrum::new().powers(&samples, &mut Bench::default(), &mut powers);
        let fft = RealFftPlanner::<f64>::new().plan_fft_forward(WINDOW);
        for frame in 0..BLOCK {
            let weight = |n: usize| 0.5 - 0.5 * (TAU * n as f64 / WINDOW as f64).cos();
            let mut input: Vec<f64> =
                (0..WINDOW).map(|n| f64::from(samples[frame * HOP + n]) * weight(n)).collect();
            let mut output = fft.make_output_vec();
            fft.process(&mut input, &mut output).unwrap();
            for (bin, expected) in output.iter().map(realfft::num_complex::Complex::norm_sqr).enumerate() {
                let got = f64::from(powers[bin][frame]);
                assert!(
                    (got - expected).abs() <= 1e-6 * expected + 1e-20,
                    "frame {frame}, bin {bin}: {got} {expected}"
                );
            }
        }
    }
}

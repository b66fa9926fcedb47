//! The search for the scale (and minimum) under which a few weights round best. Must not know any layout, nor how the
//! scale found here is itself rounded.

/// Tries made at once, one in each lane: enough to keep vector units busy; fixed, so that the bits are the same on
/// every machine.
const LANES: usize = 8;

/// Below this every block format's f16 scale is zero.
pub(crate) const VANISHING: f32 = 1e-12;

/// The tries of [`Affine::fit`]: inverse scales that take the range of the weights to `top + start` codes, `top + start + step`, ….
pub(crate) struct Grid {
    /// The greatest code.
    pub(crate) top: f32,
    /// Where the tries start, in codes from `top`.
    pub(crate) start: f32,
    /// From one try to the next, in codes.
    pub(crate) step: f32,
    /// Tries, in eights.
    pub(crate) rounds: u8,
}

/// 32 weights `x = low + range · u` to be fitted by `scale · code − min`, both ≥ 0: least squares, larger weights counting
/// more (`rms + |x|`).
pub(crate) struct Affine {
    points: [Point; 32],
    target: Target,
    low: f32,
    range: f32,
}

impl Affine {
    /// Takes weights of at most 1e9.
    pub(crate) fn new(x: &[f32; 32]) -> Self {
        let (low, high) = bounds(x);
        let low = if low < 0.0 { low } else { 0.0 };
        let range = high - low;
        let inverse_range = if range < VANISHING { 0.0 } else { 1.0 / range };
        let rms = (x.iter().map(|v| v * v).sum::<f32>() / 32.0).sqrt();
        let mut points = [Point::default(); 32];
        for (point, v) in points.iter_mut().zip(x) {
            let u = (v - low) * inverse_range;
            let w = (rms + v.abs()) * inverse_range;
            *point = Point { u, w, wu: w * u };
        }
        Self { target: Target::new(&points, -low * inverse_range), points, low, range }
    }

    /// The best scale and minimum found for codes 0 to `grid.top`.
    ///
    /// Each try rounds with one scale, then solves for the scale and minimum that fit these codes best. A last round of
    /// tries starts from the best fit so far. The method is that of ggml's `make_qkx2_quants`; the squared error
    /// comes from the sums that the solution needs, not from a second pass.
    pub(crate) fn fit(&self, grid: &Grid) -> (f32, f32) {
        if self.range < VANISHING {
            return (0.0, -self.low);
        }
        let mut best = Fit { scale: 1.0 / f64::from(grid.top), min: 0.0, error: f64::INFINITY };
        for round in 0..grid.rounds {
            let first = grid.top + grid.start + grid.step * LANES as f32 * f32::from(round);
            let multipliers = std::array::from_fn(|lane| first + grid.step * lane as f32);
            self.target
                .improve(&mut best, &CodeSums::new(&self.points, &multipliers, &[0.0; LANES], grid.top));
        }
        let (multiplier, min) = ((1.0 / best.scale) as f32, best.min as f32);
        let multipliers = std::array::from_fn(|lane| multiplier + grid.step * 0.5 * (lane as f32 - 3.0));
        let offsets = multipliers.map(|multiplier| -min * multiplier);
        self.target.improve(&mut best, &CodeSums::new(&self.points, &multipliers, &offsets, grid.top));
        (best.scale as f32 * self.range, -self.low - best.min as f32 * self.range)
    }

    /// Of a 6-bit scale and minimum in units of `d` and `m`, and those one step away, the pair that fits best.
    pub(crate) fn settle(&self, (d, m): (f32, f32), scale: u8, min: u8, top: f32) -> (u8, u8) {
        const STEPS: [(i8, i8); LANES] = [(0, 0), (1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 2)];
        if self.range < VANISHING || scale == 0 {
            return (scale, min);
        }
        let moved = |value: u8, by: i8, least: u8| value.saturating_add_signed(by).clamp(least, 63);
        let pairs = STEPS.map(|(a, b)| (moved(scale, a, 1), moved(min, b, 0)));
        let scales = pairs.map(|(scale, _)| d * f32::from(scale) / self.range);
        let mins = pairs.map(|(_, min)| (-m * f32::from(min) - self.low) / self.range);
        let multipliers = scales.map(|scale| 1.0 / scale);
        let offsets = std::array::from_fn(|lane| -mins[lane] * multipliers[lane]);
        if !multipliers.iter().chain(&offsets).all(|v: &f32| v.abs() < 1e4) {
            return (scale, min);
        }
        let sums = CodeSums::new(&self.points, &multipliers, &offsets, top);
        let mut best = (f64::INFINITY, (scale, min));
        for lane in 0..LANES {
            let [wl, wll, wlu] = [sums.wl[lane], sums.wll[lane], sums.wlu[lane]].map(f64::from);
            let error = self.target.error(f64::from(scales[lane]), f64::from(mins[lane]), wl, wll, wlu);
            if error < best.0 {
                best = (error, pairs[lane]);
            }
        }
        best.1
    }
}

/// A weight `u` in 0 to 1 that counts `w`.
#[derive(Clone, Copy, Default)]
struct Point {
    u: f32,
    w: f32,
    wu: f32,
}

/// What does not change between the tries of [`Affine::fit`].
struct Target {
    /// Σ w
    w: f64,
    /// Σ w·u
    wu: f64,
    /// Σ w·u²
    wuu: f64,
    /// The greatest minimum allowed: a code of 0 never stands for a weight above zero.
    min_limit: f64,
}

/// Sums over the codes `l` of each try.
struct CodeSums {
    /// Σ w·l
    wl: [f32; LANES],
    /// Σ w·l²
    wll: [f32; LANES],
    /// Σ w·u·l
    wlu: [f32; LANES],
}

/// `u ≈ scale · l + min`, and its weighted squared error.
struct Fit {
    scale: f64,
    min: f64,
    error: f64,
}

impl CodeSums {
    /// The sums of the codes `multiplier · u + offset`, rounded and held within 0 to `top`.
    #[inline(never)]
    fn new(points: &[Point; 32], multipliers: &[f32; LANES], offsets: &[f32; LANES], top: f32) -> Self {
        let mut sums = Self { wl: [0.0; LANES], wll: [0.0; LANES], wlu: [0.0; LANES] };
        for Point { u, w, wu } in points {
            let mut codes = [0.0; LANES];
            for (code, (multiplier, offset)) in codes.iter_mut().zip(multipliers.iter().zip(offsets)) {
                *code = within(nearest(multiplier * u + offset), 0.0, top);
            }
            for (sum, code) in sums.wl.iter_mut().zip(&codes) {
                *sum += code * w;
            }
            for (sum, code) in sums.wll.iter_mut().zip(&codes) {
                *sum += code * code * w;
            }
            for (sum, code) in sums.wlu.iter_mut().zip(&codes) {
                *sum += code * wu;
            }
        }
        sums
    }
}

impl Target {
    fn new(points: &[Point; 32], min_limit: f32) -> Self {
        let (mut w, mut wu, mut wuu) = (0.0, 0.0, 0.0);
        for point in points {
            w += point.w;
            wu += point.wu;
            wuu += point.wu * point.u;
        }
        Self { w: f64::from(w), wu: f64::from(wu), wuu: f64::from(wuu), min_limit: f64::from(min_limit) }
    }

    /// Replaces `best` by the best fit to the codes of a try, where one is better.
    fn improve(&self, best: &mut Fit, sums: &CodeSums) {
        for lane in 0..LANES {
            let [wl, wll, wlu] = [sums.wl[lane], sums.wll[lane], sums.wlu[lane]].map(f64::from);
            let fit = self.solve(wl, wll, wlu);
            if fit.error < best.error {
                *best = fit;
            }
        }
    }

    /// The best scale and minimum for one try's codes; an infinite error where there is none (all codes equal).
    #[inline(always)]
    fn solve(&self, wl: f64, wll: f64, wlu: f64) -> Fit {
        let determinant = self.w * wll - wl * wl;
        let limited = wll * self.wu - wl * wlu > self.min_limit * determinant;
        let (above, below) = if limited {
            (wlu - self.min_limit * wl, wll)
        } else {
            (self.w * wlu - self.wu * wl, determinant)
        };
        if determinant.is_nan() || determinant <= 0.0 || above.is_nan() || above <= 0.0 {
            return Fit { scale: 1.0, min: 0.0, error: f64::INFINITY };
        }
        let scale = above / below;
        let min = if limited { self.min_limit } else { (wll * self.wu - wl * wlu) / below };
        Fit { scale, min, error: self.error(scale, min, wl, wll, wlu) }
    }

    /// The weighted squared error of `scale · l + min`.
    #[inline(always)]
    fn error(&self, scale: f64, min: f64, wl: f64, wll: f64, wlu: f64) -> f64 {
        self.wuu + scale * (scale * wll + 2.0 * (min * wl - wlu)) + min * (min * self.w - 2.0 * self.wu)
    }
}

/// The scale (of either sign) of 16 weights for codes −32 to 31: the weight of greatest magnitude gets the longer, negative
/// side. Least squares, larger weights counting more (`rms + |x|`), over multipliers around 32: the method of ggml's
/// `make_qx_quants`.
pub(crate) fn symmetric(x: &[f32; 16]) -> f32 {
    let peak = signed_peak(x);
    if peak.is_nan() || peak.abs() < VANISHING {
        return 0.0;
    }
    let inverse_peak = 1.0 / peak;
    let unit = each(x, |v| v * inverse_peak);
    let rms = (dot(&unit, &unit) / 16.0).sqrt() as f32;
    let mut best = (0.0, 0.0);
    for round in 0..3_u8 {
        let multipliers: [f32; LANES] =
            std::array::from_fn(|lane| -33.1 + 0.1 * (lane as f32 + LANES as f32 * f32::from(round)));
        let (mut wlu, mut wll) = ([0.0; LANES], [0.0; LANES]);
        for u in unit {
            let w = rms + u.abs();
            let mut codes = [0.0; LANES];
            for (code, multiplier) in codes.iter_mut().zip(&multipliers) {
                *code = within(nearest(multiplier * u), -32.0, 31.0);
            }
            for (sum, code) in wlu.iter_mut().zip(&codes) {
                *sum += code * (w * u);
            }
            for (sum, code) in wll.iter_mut().zip(&codes) {
                *sum += code * code * w;
            }
        }
        for (wlu, wll) in wlu.into_iter().zip(wll) {
            keep_better(&mut best, f64::from(wlu), f64::from(wll));
        }
    }
    best.0 as f32 * peak
}

/// Replaces `best` (scale, and how much squared error that scale removes) if a scale fitted to codes with these sums
/// removes more.
pub(crate) fn keep_better(best: &mut (f64, f64), wlu: f64, wll: f64) {
    let removed = wlu * wlu / wll;
    if removed > best.1 {
        *best = (wlu / wll, removed);
    }
}

/// The nearest whole number, ties to even, of a value within ±2²².
#[inline(always)]
pub(crate) fn nearest(value: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}

/// `value` held within bounds; written so that it becomes two vector instructions.
#[inline(always)]
pub(crate) fn within(value: f32, low: f32, high: f32) -> f32 {
    let value = if value > low { value } else { low };
    if value < high { value } else { high }
}

/// Least and greatest of some finite numbers (a multiple of 8 of them).
#[inline(always)]
pub(crate) fn bounds<const N: usize>(x: &[f32; N]) -> (f32, f32) {
    let mut low = [f32::INFINITY; LANES];
    let mut high = [f32::NEG_INFINITY; LANES];
    for x in x.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            low[lane] = if x[lane] < low[lane] { x[lane] } else { low[lane] };
            high[lane] = if x[lane] > high[lane] { x[lane] } else { high[lane] };
        }
    }
    let low = low.into_iter().fold(f32::INFINITY, |a, b| if b < a { b } else { a });
    let high = high.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
    (low, high)
}

/// The greatest magnitude.
#[inline(always)]
pub(crate) fn magnitude<const N: usize>(x: &[f32; N]) -> f32 {
    let mut peak = [0.0_f32; LANES];
    for x in x.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let size = x[lane].abs();
            peak[lane] = if size > peak[lane] { size } else { peak[lane] };
        }
    }
    peak.into_iter().fold(0.0, |a, b| if b > a { b } else { a })
}

/// The first of the numbers that have the greatest magnitude, with its sign; +0 where all are zero.
#[inline(always)]
pub(crate) fn signed_peak<const N: usize>(x: &[f32; N]) -> f32 {
    let (low, high) = bounds(x);
    if high > -low {
        high
    } else if high < -low {
        low
    } else {
        x.iter().copied().find(|v| v.abs() == high && high > 0.0).unwrap_or(0.0)
    }
}

/// `f` of each element: a loop, which vectorises where `array::map` does not.
#[inline(always)]
pub(crate) fn each<const N: usize>(x: &[f32; N], f: impl Fn(f32) -> f32) -> [f32; N] {
    let mut out = [0.0; N];
    for (out, x) in out.iter_mut().zip(x) {
        *out = f(*x);
    }
    out
}

/// Element by element.
#[inline(always)]
pub(crate) fn product<const N: usize>(a: &[f32; N], b: &[f32; N]) -> [f32; N] {
    let mut out = [0.0; N];
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a * b;
    }
    out
}

/// Σ a·b, in lanes.
#[inline(always)]
pub(crate) fn dot<const N: usize>(a: &[f32; N], b: &[f32; N]) -> f64 {
    let mut sums = [0.0; LANES];
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let pairs: [f32; 4] = std::array::from_fn(|i| sums[i] + sums[i + 4]);
    f64::from(pairs[0] + pairs[2]) + f64::from(pairs[1] + pairs[3])
}

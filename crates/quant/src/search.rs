//! The search for the scale (and minimum) that rounds a small group of weights best. Must not know: any layout, or
//! how the scale found here is itself rounded.

/// Tries that run at once, one in each lane: enough to keep vector units busy. The number is fixed so that the bits
/// are the same on every machine.
const LANES: usize = 8;

/// Every block format's f16 scale is zero for smaller values.
pub(crate) const VANISHING: f32 = 1e-12;

/// The tries of [`Affine::fit`]: inverse scales that map the range of the weights to `top + start` codes,
/// `top + start + step`, ….
pub(crate) struct Grid {
    /// The largest code.
    pub(crate) top: f32,
    /// Start of the tries, in codes relative to `top`.
    pub(crate) start: f32,
    /// Distance from one try to the next, in codes.
    pub(crate) step: f32,
    /// Number of rounds, with eight tries each.
    pub(crate) rounds: u8,
}

/// 32 weights `x = low + range · u`, to be fitted by `scale · code − min` with both parameters ≥ 0. The fit is least
/// squares, and larger weights count more (`rms + |x|`).
pub(crate) struct Affine {
    points: [Point; 32],
    target: Target,
    low: f32,
    range: f32,
}

impl Affine {
    /// Prepares weights of at most 1e9 in magnitude.
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

    /// Returns the best scale and minimum found for codes 0 to `grid.top`.
    ///
    /// Each try rounds with one scale, then solves for the scale and minimum that fit these codes best. A last round
    /// of tries starts from the best fit so far. The method is that of ggml's `make_qkx2_quants`. The squared error
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

    /// Returns the best-fitting pair of a 6-bit scale and minimum, in units of `d` and `m`, among the given pair and
    /// its neighbours.
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

/// A weight, scaled to `u` in 0 to 1, with importance `w`.
#[derive(Clone, Copy, Default)]
struct Point {
    u: f32,
    w: f32,
    wu: f32,
}

/// The sums that are the same for all tries of [`Affine::fit`].
struct Target {
    /// Σ w
    w: f64,
    /// Σ w·u
    wu: f64,
    /// Σ w·u²
    wuu: f64,
    /// The largest allowed minimum. It keeps code 0 from meaning a weight above zero.
    min_limit: f64,
}

/// Sums over the codes `l` of each try, one try per lane.
struct CodeSums {
    /// Σ w·l
    wl: [f32; LANES],
    /// Σ w·l²
    wll: [f32; LANES],
    /// Σ w·u·l
    wlu: [f32; LANES],
}

/// A fit `u ≈ scale · l + min` and its weighted squared error.
struct Fit {
    scale: f64,
    min: f64,
    error: f64,
}

impl CodeSums {
    /// Sums over the codes `multiplier · u + offset`, rounded and clamped to 0 to `top`.
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

    /// Replaces `best` by the best fit to the codes of a try, if a try is better.
    fn improve(&self, best: &mut Fit, sums: &CodeSums) {
        for lane in 0..LANES {
            let [wl, wll, wlu] = [sums.wl[lane], sums.wll[lane], sums.wlu[lane]].map(f64::from);
            let fit = self.solve(wl, wll, wlu);
            if fit.error < best.error {
                *best = fit;
            }
        }
    }

    /// Returns the best scale and minimum for one try's codes. The error is infinite if there is none (all codes are
    /// equal).
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

    /// Returns the weighted squared error of `scale · l + min`.
    #[inline(always)]
    fn error(&self, scale: f64, min: f64, wl: f64, wll: f64, wlu: f64) -> f64 {
        self.wuu + scale * (scale * wll + 2.0 * (min * wl - wlu)) + min * (min * self.w - 2.0 * self.wu)
    }
}

/// Returns the scale (of either sign) of 16 weights for codes −32 to 31. The weight of largest magnitude gets the
/// longer, negative side. The fit is least squares over multipliers around 32, and larger weights count more
/// (`rms + |x|`). The method is that of ggml's `make_qx_quants`.
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

/// Replaces `best` (a scale and the squared error that it removes) if a scale fitted to codes with these sums removes
/// more.
pub(crate) fn keep_better(best: &mut (f64, f64), wlu: f64, wll: f64) {
    let removed = wlu * wlu / wll;
    if removed > best.1 {
        *best = (wlu / wll, removed);
    }
}

/// Returns the nearest integer, ties to even, of a value within ±2²².
#[inline(always)]
pub(crate) fn nearest(value: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}

/// Clamps `value` to the bounds. Written so that it compiles to two vector instructions.
#[inline(always)]
pub(crate) fn within(value: f32, low: f32, high: f32) -> f32 {
    let value = if value > low { value } else { low };
    if value < high { value } else { high }
}

/// Returns the smallest and the largest of `N` finite numbers. `N` is a multiple of 8.
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

/// Returns the largest magnitude.
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

/// Returns the number of largest magnitude, with its sign. The first one on ties, +0 if all are zero.
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

/// Applies `f` to each element. A loop, because it vectorizes in cases where `array::map` does not.
#[inline(always)]
pub(crate) fn each<const N: usize>(x: &[f32; N], f: impl Fn(f32) -> f32) -> [f32; N] {
    let mut out = [0.0; N];
    for (out, x) in out.iter_mut().zip(x) {
        *out = f(*x);
    }
    out
}

/// Returns the elementwise product.
#[inline(always)]
pub(crate) fn product<const N: usize>(a: &[f32; N], b: &[f32; N]) -> [f32; N] {
    let mut out = [0.0; N];
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a * b;
    }
    out
}

/// Returns Σ a·b, summed in lanes.
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

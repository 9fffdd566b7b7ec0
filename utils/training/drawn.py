"""Drawn garments: ten classes of silhouettes that stand in for Fashion-MNIST.

Whatever a machine without a network measures on them is real; the garments are not.
They have the classes, shapes and types of Fashion-MNIST, and some of its confusion:
a shirt may have the sleeves of a T-shirt or of a pullover and hardly visible buttons.

Every garment is painted in bands. A band is a stretch of rows, each filled from a left
to a right edge, and straight lines join the edges from one knot to the next. Knots are
given on a grid of 28 x 28: `x` from -14 (left) to 14 (right), `y` from 0 (top) to 28.

Only uniform random numbers and + - * / are used, no sines, no sums over many numbers:
those are exact everywhere, so that a seed gives the same images on every machine.
"""

from itertools import pairwise

import numpy as np

SIZE = 28
COLOUR_SIZE = 32
CLASSES = 10
EACH = 100  # images of a class painted at once; they fit into a core's cache


def draw(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` garments: images uint8 (count, 28, 28), labels uint8 (count,).

    Image i is of class i % 10, so that any first n images are balanced. The same seed
    gives the same images, and a smaller count the first of them.
    """
    images = np.empty((count, SIZE, SIZE), np.uint8)
    labels = np.arange(count, dtype=np.int64) % CLASSES
    for block, start in enumerate(range(0, count, EACH * CLASSES)):
        for label, paint in enumerate(PAINTERS):
            cloth = Cloth(np.random.default_rng([seed, block, label]))
            paint(cloth)
            rows = images[start + label : start + EACH * CLASSES : CLASSES]
            rows[:] = cloth.finished()[: len(rows)]
    return images, labels.astype(np.uint8)


def draw_in_colour(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The garments of `draw`, each in one colour on a ground of another: images uint8
    (count, 32, 32, 3), labels uint8 (count,). They stand in for CIFAR-10.
    """
    grey, labels = draw(count, seed)
    images = np.empty((count, COLOUR_SIZE, COLOUR_SIZE, 3), np.uint8)
    margin = ((COLOUR_SIZE - SIZE) // 2,) * 2
    for start in range(0, count, EACH * CLASSES):
        shade = np.pad(grey[start : start + EACH * CLASSES], [(0, 0), margin, margin])
        shade = shade[..., None].astype(np.int32)
        # A block has its own numbers, all of them, however many images are wanted.
        rng = np.random.default_rng([seed, start, CLASSES])
        garment, ground = rng.random((2, EACH * CLASSES, 1, 1, 3))[:, : len(shade)]
        garment = (80 + 175 * garment).astype(np.int32)
        ground = (175 * ground).astype(np.int32)
        seen = np.maximum(255 - 4 * shade, 0)  # of the ground, behind a soft edge
        images[start : start + len(shade)] = (shade * garment + seen * ground) // 255
    return images, labels


class Cloth:
    """A stack of EACH black canvases, painted on together, each in its own way."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.canvas = np.zeros((EACH, SIZE, SIZE), np.float32)
        self.colour = self.between(0.35, 0.95)
        self.height = self.between(0.82, 1.04)
        self.width = self.between(0.82, 1.04)
        self.down = self.between(-1.5, 1.5)
        self.right = self.between(-1.5, 1.5)
        self.lean = self.between(-0.07, 0.07)

    def between(self, low: float, high: float) -> np.ndarray:
        """A random number for every canvas, float32 (EACH, 1)."""
        spread = np.float32(high - low)
        return np.float32(low) + spread * self.rng.random((EACH, 1), np.float32)

    def either(self, chance: float, one: np.ndarray, other) -> np.ndarray:
        """For every canvas `one`, with this chance, or the `other`."""
        return np.where(self.between(0, 1) < chance, one, np.float32(other))

    def band(self, shade, *knots):
        """Paint a band through knots (y, left, right), top first.

        `shade` is 0 for black, 1 for the garment's own colour; it and the knots are
        numbers or float32 (EACH, 1).
        """
        row = np.arange(SIZE, dtype=np.float32)
        middle = np.float32(SIZE / 2)
        y = (row + np.float32(0.5) - middle - self.down) / self.height + middle
        top, left, right = (np.float32(number) for number in knots[0])
        for (y0, left0, right0), (y1, left1, right1) in pairwise(knots):
            travelled = np.clip((y - y0) / np.maximum(y1 - y0, 0.1), 0, 1)
            left = left + (left1 - left0) * travelled
            right = right + (right1 - right0) * travelled
        bottom = knots[-1][0]
        # How much of each pixel is covered: edges become soft, not jagged.
        down = np.clip(np.minimum(y + 0.5, bottom) - np.maximum(y - 0.5, top), 0, 1)
        middle = middle + self.right + self.lean * (y - middle)
        left = (middle + left * self.width)[:, :, None]
        right = (middle + right * self.width)[:, :, None]
        across = np.minimum(row + 1, right) - np.maximum(row, left)
        cover = np.clip(across, 0, 1) * down[:, :, None]
        shade = (shade * self.colour)[:, :, None]
        self.canvas += cover * (shade - self.canvas)

    def pair(self, shade, *knots):
        """Paint a band and its mirror image: sleeves, trouser legs."""
        self.band(shade, *knots)
        self.band(shade, *((y, -right, -left) for y, left, right in knots))

    def finished(self) -> np.ndarray:
        """The canvases with stripes, shadow and noise, as uint8 (EACH, 28, 28)."""
        pixel = np.arange(SIZE, dtype=np.float32)

        def stripes(strength):
            wave = pixel * self.between(0.08, 0.45) + self.between(0, 1)
            return strength * (np.abs(wave - np.floor(wave) - 0.5) - 0.25)

        along = stripes(self.either(0.4, self.between(0.3, 2), 0))
        across = stripes(self.either(0.35, self.between(0.3, 2), 0))
        shadow = self.between(-0.02, 0.02) * (pixel - SIZE / 2)
        texture = 1 + along[:, :, None] + (across + shadow)[:, None, :]
        noise = self.rng.random(self.canvas.shape, np.float32) - np.float32(0.5)
        texture += noise * self.between(0.3, 1.6)[:, :, None]
        return (np.clip(self.canvas * texture, 0, 1) * 255).astype(np.uint8)


def upper_body(cloth, sleeve, spread, cuff, hem, waist, neck, neck_depth):
    """Two sleeves, a body and a neck: what six of the ten classes have in common.

    `sleeve` is its length; at its end it is `cuff` wide and `spread` from the body.
    """
    side = cloth.between(6, 7.5)
    top = cloth.between(2.5, 4)
    sleeve_shade = cloth.between(0.75, 1.1)
    cloth.pair(
        sleeve_shade,
        (top, -side + 1, -side + 4),
        (top + 3, -side - 2, -side + 2),
        (top + sleeve, -side - spread, -side - spread + cuff),
    )
    cloth.band(
        1,
        (top - 1, -neck - 1, neck + 1),
        (top + 0.5, -side, side),
        (top + 8, -waist, waist),
        (top + 11, -waist, waist),
        (hem, -side, side),
    )
    cloth.band(0, (top - 2, -neck, neck), (top - 1 + neck_depth, -0.5, 0.5))
    return top


def t_shirt(cloth):
    upper_body(
        cloth,
        sleeve=cloth.between(4, 14),
        spread=cloth.between(2.5, 5),
        cuff=cloth.between(4, 6),
        hem=cloth.between(22, 26),
        waist=cloth.between(5.5, 7),
        neck=cloth.between(2, 4),
        neck_depth=cloth.between(1, 5),
    )


def trouser(cloth):
    waist = cloth.between(4, 6)
    crotch = cloth.between(6, 11)
    ankle = cloth.between(2.5, 4.5)
    apart = cloth.between(0.3, 2.5)
    cloth.pair(
        1,
        (1, -waist, 0),
        (crotch, -waist - 0.5, -0.2),
        (27, -apart - ankle, -apart),
    )
    cloth.band(cloth.between(0.6, 1.1), (1, -waist, waist), (2.5, -waist, waist))


def pullover(cloth):
    hem = cloth.between(22, 26)
    upper_body(
        cloth,
        sleeve=cloth.between(11, 22),
        spread=cloth.between(2.5, 5.5),
        cuff=cloth.between(2.5, 4.5),
        hem=hem,
        waist=cloth.between(5.5, 7),
        neck=cloth.between(2, 3.5),
        neck_depth=cloth.between(0, 5),
    )
    cuffs = cloth.either(0.5, cloth.between(0.8, 1.1), 1)
    cloth.band(cuffs, (hem - 2, -6.5, 6.5), (hem, -6.5, 6.5))


def dress(cloth):
    shoulder = cloth.between(3, 7)
    waist = shoulder - cloth.between(0, 2)
    skirt = waist + cloth.between(0, 5)
    sleeve = cloth.either(0.6, cloth.between(3, 18), cloth.between(0, 0.5))
    cloth.pair(
        cloth.between(0.75, 1.1),
        (1.5, -shoulder, -shoulder + 2),
        (1.5 + sleeve, -shoulder - cloth.between(1, 4), -shoulder + 1),
    )
    cloth.band(
        1,
        (1, -shoulder, shoulder),
        (10, -waist, waist),
        (cloth.between(25, 28), -skirt, skirt),
    )
    neck = cloth.between(1, 2.5)
    cloth.band(0, (0, -neck, neck), (cloth.between(2, 6), -0.5, 0.5))


def coat(cloth):
    hem = cloth.between(23, 28)
    top = upper_body(
        cloth,
        sleeve=cloth.between(16, 23),
        spread=cloth.between(2, 5),
        cuff=cloth.between(3, 4.5),
        hem=hem,
        waist=cloth.between(5.5, 7),
        neck=cloth.between(2, 3.5),
        neck_depth=cloth.between(1, 7),
    )
    gap = cloth.between(0.2, 0.6)
    opening = cloth.either(0.5, cloth.between(0.55, 1.1), 1)
    cloth.band(opening, (top + 2, -gap, gap), (hem, -gap, gap))


def shirt(cloth):
    hem = cloth.between(22, 27)
    sleeve = cloth.either(0.35, cloth.between(4, 13), cloth.between(13, 22))
    top = upper_body(
        cloth,
        sleeve=sleeve,
        spread=cloth.between(2.5, 5),
        cuff=cloth.between(3, 5),
        hem=hem,
        waist=cloth.between(5, 7),
        neck=cloth.between(1.5, 3.5),
        neck_depth=cloth.between(1, 6),
    )
    thread = cloth.between(0.2, 0.5)
    buttons = cloth.either(0.5, cloth.between(0.65, 1.1), 1)
    cloth.band(buttons, (top + 2, -thread, thread), (hem, -thread, thread))
    collar = cloth.either(0.35, cloth.between(0.85, 1.15), 1)
    cloth.pair(collar, (top - 1.5, -3.5, -1.5), (top + 1.5, -2.5, -0.5))


def sandal(cloth):
    """A sole, flat or on a heel, a strap over the toes and straps at the ankle."""
    toe = cloth.between(-13, -11)
    heel = cloth.between(9, 12.5)
    lift = cloth.either(0.5, cloth.between(0, 1), cloth.between(2, 8))
    arch = 21 - lift
    front = cloth.between(1, 6)
    ankle = arch - cloth.between(5, 11)
    shade = cloth.between(0.6, 1.3)
    strap = cloth.between(1, 5)
    instep = cloth.between(-3, 4)
    cloth.band(1, (ankle, front, front + strap), (21, instep - strap, instep))
    cloth.band(1, (ankle, heel - 2, heel - 0.5), (arch, heel - 2 - strap, heel))
    cloth.band(1, (ankle, front, heel - 0.5), (ankle + strap, front - 1, heel - 0.5))
    over = cloth.between(14, 19)
    strap = cloth.between(1, 4)
    cloth.band(1, (over, -6 - strap / 2, -6 + strap / 2), (21, -9 - strap, -4 + strap))
    cloth.band(shade, (arch, heel - 7, heel), (21, toe + 1, 4), (23, toe, 1))
    cloth.band(shade, (arch, heel - 4, heel), (23, heel - 2, heel))


def shoe(cloth, ankle, front):
    """A shoe that points to the left: its opening at height `ankle`."""
    toe = cloth.between(-13, -11)
    heel = cloth.between(10, 12.5)
    sole = cloth.between(21, 23)
    tongue = cloth.between(14, 16.5)
    cloth.band(
        1,
        (ankle, front, heel),
        (tongue, front - cloth.between(0, 2.5), heel - cloth.between(0, 1)),
        (sole - 1.5, toe + 0.5, heel),
        (sole, toe, heel),
    )
    cloth.band(cloth.between(0.4, 1.4), (sole, toe, heel), (sole + 2, toe + 0.5, heel))
    return sole, heel, toe


def sneaker(cloth):
    ankle = cloth.between(6, 14)
    front = cloth.between(0, 4)
    sole, _, _ = shoe(cloth, ankle, front)
    for _ in range(2):
        x = cloth.between(-7, 5)
        cloth.band(cloth.between(0.5, 1.4), (15, x + 2, x + 3), (sole, x, x + 1.5))


def bag(cloth):
    wide = cloth.between(8, 13)
    high = cloth.between(9, 15)
    low = cloth.between(22, 26)
    grip = cloth.between(3, 8)
    strap = cloth.between(0.8, 1.8)
    arch = cloth.between(2, 8)
    cloth.band(
        1, (arch, -grip / 2, grip / 2), (arch + 3, -grip, grip), (high, -grip, grip)
    )
    inner = grip - strap
    cloth.band(
        0,
        (arch + strap, -inner / 2, inner / 2),
        (arch + strap + 2, -inner, inner),
        (high, -inner, inner),
    )
    belly = wide - cloth.between(-1.5, 2)
    cloth.band(1, (high, -belly, belly), (low, -wide, wide))
    flap = high + cloth.between(1, 6)
    cloth.band(cloth.between(0.6, 1.2), (high, -belly, belly), (flap, -belly, belly))


def ankle_boot(cloth):
    ankle = cloth.between(3, 12)
    front = cloth.between(-1, 3.5)
    sole, heel, _ = shoe(cloth, ankle, front)
    block = cloth.between(0, 4)
    cloth.band(1, (sole, heel - 5, heel), (sole + 1 + block, heel - 4, heel))


PAINTERS = (
    t_shirt,
    trouser,
    pullover,
    dress,
    coat,
    sandal,
    shirt,
    sneaker,
    bag,
    ankle_boot,
)

"""Facts about the household: which furniture, objects and fixtures each kind of room has, and what goes where.

Names are class names as AI2-THOR spells them. The facts are those of the ALFRED/ALFWorld domain (Shridhar et al. 2021,
arXiv:2010.03768), written down as compact tables of our own.
"""

import dataclasses


def _words(**rows: str) -> dict[str, tuple[str, ...]]:
    return {key: tuple(text.split()) for key, text in rows.items()}


PROPERTIES = _words(
    cleanable="Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan Plate Pot "
    "Potato SoapBar Spatula Spoon Tomato",
    heatable="Apple Bread Cup Egg Mug Plate Potato Tomato",
    coolable="Apple Bowl Bread Cup Egg Lettuce Mug Pan Plate Pot Potato Tomato WineBottle",
    toggleable="DeskLamp FloorLamp",
    sliceable="Apple Bread Egg Lettuce Potato Tomato",
    is_receptacle="Bowl Box Cup Mug Pan Plate Pot",
)
"""Field of `game.Object` -> classes that have the property."""

_FOOD = "Apple Bread Egg Lettuce Potato Tomato "
_DISHES = "Bowl Cup Mug Plate Pan Pot "
_CUTLERY = "ButterKnife Fork Knife Ladle Spatula Spoon "
_CONDIMENTS = "PepperShaker SaltShaker "
_SMALL = "CellPhone CreditCard KeyChain Pen Pencil Watch "
_BATH = "Candle Cloth HandTowel SoapBar SoapBottle SprayBottle TissueBox ToiletPaper "
_DESKTOP = _SMALL + "AlarmClock BasketBall Book Bowl Box CD Cloth Laptop Mug Statue TennisRacket TissueBox Vase "

CAN_CONTAIN = _words(
    ArmChair="Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
    BathtubBasin="Cloth HandTowel SoapBar",
    Bed="BaseballBat BasketBall Book CellPhone Laptop Pillow TennisRacket",
    Cabinet="Book Bowl Box Candle Cloth Cup DishSponge Glassbottle HandTowel Kettle Ladle Mug Newspaper Pan Plate "
    "Plunger Pot SoapBar SoapBottle SprayBottle TissueBox ToiletPaper Vase WateringCan WineBottle " + _CONDIMENTS,
    CoffeeMachine="Mug",
    CoffeeTable="Book Bowl Box CreditCard KeyChain Laptop Newspaper Pen Pencil Plate RemoteControl Statue TissueBox "
    "Vase Watch",
    CounterTop=_FOOD
    + _DISHES
    + _CUTLERY
    + _CONDIMENTS
    + "Book Candle CellPhone Cloth CreditCard DishSponge Glassbottle HandTowel "
    "Kettle SoapBar SoapBottle SprayBottle Statue ToiletPaper Vase WineBottle",
    Desk=_DESKTOP,
    DiningTable=_FOOD
    + _DISHES
    + _CUTLERY
    + _CONDIMENTS
    + "Book Box CreditCard DishSponge Glassbottle Kettle KeyChain Laptop Newspaper "
    "Pen Pencil RemoteControl SoapBottle Statue TissueBox Vase Watch WineBottle",
    Drawer=_CUTLERY
    + _CONDIMENTS
    + _SMALL
    + "Book CD Candle Cloth DishSponge HandTowel Newspaper RemoteControl SoapBar SoapBottle "
    "SprayBottle TissueBox ToiletPaper WateringCan",
    Dresser=_DESKTOP + "Newspaper RemoteControl WateringCan",
    Fridge=_FOOD + _DISHES + "Glassbottle WineBottle",
    GarbageCan=_FOOD
    + "CD Cloth DishSponge HandTowel Newspaper Pen Pencil SoapBar SoapBottle SprayBottle TissueBox ToiletPaper "
    "WineBottle",
    HandTowelHolder="HandTowel",
    LaundryHamper="Cloth",
    Microwave="Apple Bowl Bread Cup Egg Glassbottle Mug Plate Potato Tomato",
    Ottoman="Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
    Safe="CD CellPhone CreditCard KeyChain Statue Vase Watch",
    Shelf=_SMALL
    + _CONDIMENTS
    + "AlarmClock Book Bowl Box CD Candle Cloth Cup DishSponge Glassbottle HandTowel Kettle Mug Newspaper Plate "
    "Pot RemoteControl SoapBar SoapBottle SprayBottle Statue TissueBox ToiletPaper Vase WineBottle",
    SideTable=_FOOD
    + _DISHES
    + _CUTLERY
    + _CONDIMENTS
    + _DESKTOP
    + "BaseballBat DishSponge Newspaper RemoteControl SoapBottle "
    "WateringCan",
    SinkBasin="Apple Egg Lettuce Potato Tomato Cloth DishSponge Glassbottle HandTowel Kettle SoapBar "
    + _DISHES
    + _CUTLERY,
    Sofa="Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
    StoveBurner="Kettle Pan Pot",
    TVStand="RemoteControl TissueBox",
    Toilet=_BATH,
    ToiletPaperHanger="ToiletPaper",
    TowelHolder="Towel",
)
"""Receptacle class -> object classes that may be put there (absent: none)."""

OPENABLE = {"Cabinet": 0.75, "Drawer": 0.8, "Fridge": 1.0, "Microwave": 1.0, "Safe": 1.0}
"""Chance that a receptacle of the class can be opened at all (and then starts closed); the others never can."""

PARTNERS = {
    "Cabinet": ("Cabinet", 0.25, ""),
    "CoffeeMachine": ("CounterTop", 0.6, "Mug"),
    "Drawer": ("Drawer", 0.3, ""),
    "GarbageCan": ("Cabinet", 0.1, ""),
    "HandTowelHolder": ("TowelHolder", 0.2, ""),
    "Safe": ("Shelf", 0.4, "CreditCard KeyChain Watch"),
    "Shelf": ("Desk", 0.5, "AlarmClock Bowl DeskLamp KeyChain Mug Pen Pencil"),
    "SideTable": ("Sofa", 0.2, "RemoteControl"),
    "StoveBurner": ("StoveBurner", 0.8, "Pan Pot"),
    "Toaster": ("CounterTop", 0.25, ""),
    "ToiletPaperHanger": ("Toilet", 0.3, "ToiletPaper"),
}
"""Class -> (class it may share a location with, chance, objects that are then often listed in both)."""


@dataclasses.dataclass(frozen=True)
class Fixture:
    """Immovable things of one class: where they stand, how often that is listed, how many there are in each size."""

    name: str
    homes: tuple[str, ...]
    listed: float
    tiny: tuple[int, int]
    official: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Room:
    """A kind of room.

    first_scene: its scenes are numbered first_scene + 1, + 2, ...
    receptacles: class -> (least, most) in size tiny, then in size official.
    receptacle_total, object_total: size -> range of the sums.
    objects: class -> receptacle classes where it is found, the likeliest first.
    tiny_objects: how many of the first `objects` occur in size tiny.
    """

    name: str
    first_scene: int
    receptacles: dict[str, tuple[int, int, int, int]]
    receptacle_total: dict[str, tuple[int, int]]
    object_total: dict[str, tuple[int, int]]
    objects: dict[str, tuple[str, ...]]
    tiny_objects: int
    fixtures: tuple[Fixture, ...]

    def movables(self, size: str) -> list[str]:
        """Classes of the objects that can be carried about in rooms of that size."""
        return list(self.objects)[: self.tiny_objects if size == "tiny" else None]


def _fixtures(*rows: tuple) -> tuple[Fixture, ...]:
    return tuple(Fixture(name, tuple(homes.split()), *rest) for name, homes, *rest in rows)


_NO_ONE = (0, 0)

KITCHEN = Room(
    "kitchen",
    0,
    {
        "Fridge": (1, 1, 1, 1),
        "Microwave": (1, 1, 1, 1),
        "SinkBasin": (1, 1, 1, 1),
        "CounterTop": (1, 2, 1, 4),
        "Cabinet": (0, 2, 4, 22),
        "Drawer": (0, 1, 2, 12),
        "StoveBurner": (0, 2, 4, 4),
        "GarbageCan": (0, 1, 1, 1),
        "CoffeeMachine": (0, 1, 1, 1),
        "Toaster": (0, 0, 1, 1),
        "DiningTable": (0, 1, 0, 2),
        "Shelf": (0, 1, 0, 6),
        "SideTable": (0, 0, 0, 1),
        "Safe": (0, 0, 0, 1),
    },
    {"tiny": (6, 9), "official": (19, 54)},
    {"tiny": (7, 12), "official": (40, 75)},
    _words(
        Apple="Fridge CounterTop SinkBasin GarbageCan DiningTable Microwave",
        Bread="CounterTop Fridge DiningTable",
        Egg="Fridge CounterTop Microwave DiningTable GarbageCan SinkBasin",
        Lettuce="CounterTop Fridge DiningTable SinkBasin",
        Potato="CounterTop Fridge SinkBasin GarbageCan DiningTable Microwave",
        Tomato="CounterTop Fridge DiningTable SinkBasin GarbageCan",
        Bowl="Cabinet Fridge CounterTop DiningTable Shelf",
        Cup="Cabinet CounterTop SinkBasin DiningTable Fridge Microwave",
        Mug="CoffeeMachine CounterTop Cabinet Fridge DiningTable Shelf",
        Plate="Cabinet CounterTop Fridge DiningTable SinkBasin",
        Pan="StoveBurner CounterTop Fridge Cabinet",
        Pot="StoveBurner CounterTop Cabinet SinkBasin",
        Knife="CounterTop Drawer DiningTable SinkBasin",
        Spoon="Drawer CounterTop SinkBasin DiningTable",
        Fork="Drawer CounterTop DiningTable SinkBasin",
        Spatula="CounterTop SinkBasin Drawer DiningTable",
        DishSponge="Cabinet CounterTop SinkBasin Drawer GarbageCan Shelf",
        SaltShaker="Cabinet CounterTop Drawer DiningTable",
        PepperShaker="CounterTop Drawer Cabinet Shelf DiningTable",
        ButterKnife="CounterTop Drawer SinkBasin DiningTable",
        SoapBottle="CounterTop Cabinet GarbageCan Shelf DiningTable",
        CreditCard="CounterTop Drawer Shelf",
        CellPhone="CounterTop Drawer Shelf",
        Glassbottle="CounterTop Cabinet SinkBasin Shelf",
        Vase="Cabinet CounterTop Shelf",
        Statue="Shelf CounterTop",
        WineBottle="CounterTop DiningTable Cabinet GarbageCan",
        Kettle="StoveBurner CounterTop Cabinet",
        Ladle="CounterTop Drawer DiningTable",
        PaperTowelRoll="CounterTop GarbageCan DiningTable Shelf",
        Book="CounterTop",
    ),
    18,
    _fixtures(
        ("Sink", "SinkBasin", 0.15, (0, 1), (1, 1)),
        ("HousePlant", "CounterTop DiningTable", 0.9, (0, 1), (0, 1)),
        ("StoveKnob", "", 0, _NO_ONE, (4, 4)),
        ("LightSwitch", "", 0, (0, 1), (1, 1)),
        ("Window", "", 0, _NO_ONE, (0, 3)),
        ("Chair", "", 0, _NO_ONE, (0, 4)),
    ),
)

LIVING_ROOM = Room(
    "living room",
    200,
    {
        "Sofa": (1, 1, 1, 1),
        "SideTable": (1, 1, 1, 4),
        "CoffeeTable": (0, 1, 0, 1),
        "ArmChair": (0, 1, 0, 3),
        "Dresser": (0, 1, 0, 1),
        "DiningTable": (0, 1, 0, 2),
        "Drawer": (0, 2, 0, 14),
        "Cabinet": (0, 1, 0, 10),
        "Shelf": (0, 1, 0, 12),
        "TVStand": (0, 1, 0, 1),
        "GarbageCan": (0, 1, 1, 1),
        "Safe": (0, 0, 0, 1),
        "Ottoman": (0, 0, 0, 1),
        "Desk": (0, 0, 0, 1),
    },
    {"tiny": (6, 9), "official": (8, 32)},
    {"tiny": (6, 11), "official": (20, 46)},
    _words(
        Book="CoffeeTable ArmChair Drawer DiningTable Dresser Sofa",
        Box="Sofa Cabinet Dresser SideTable CoffeeTable",
        CellPhone="SideTable Dresser Drawer ArmChair Sofa",
        CreditCard="SideTable Sofa Drawer Dresser ArmChair Shelf",
        KeyChain="Drawer Dresser CoffeeTable SideTable Safe",
        Laptop="Sofa CoffeeTable Dresser DiningTable ArmChair",
        Newspaper="Sofa Shelf SideTable Dresser Cabinet",
        Pillow="Sofa ArmChair Ottoman",
        RemoteControl="CoffeeTable Dresser TVStand Sofa ArmChair",
        Statue="Shelf Dresser SideTable DiningTable Safe",
        TissueBox="SideTable Cabinet CoffeeTable TVStand DiningTable",
        Vase="CoffeeTable Shelf Dresser SideTable Cabinet Safe",
        Watch="Drawer Dresser SideTable Shelf CoffeeTable Safe",
        Pencil="CoffeeTable SideTable Drawer",
        Pen="SideTable CoffeeTable DiningTable Drawer",
        WateringCan="SideTable Drawer Cabinet",
        Bowl="CoffeeTable DiningTable SideTable",
        Plate="DiningTable CoffeeTable",
    ),
    14,
    _fixtures(
        ("DeskLamp", "SideTable Desk Dresser", 1.0, (1, 1), (1, 1)),
        ("FloorLamp", "SideTable ArmChair", 0.3, (0, 1), (0, 2)),
        ("Television", "TVStand Dresser CoffeeTable", 0.6, (0, 1), (1, 1)),
        ("HousePlant", "CoffeeTable DiningTable SideTable", 0.5, (0, 1), (0, 2)),
        ("LightSwitch", "", 0, (0, 1), (1, 1)),
        ("Painting", "", 0, _NO_ONE, (0, 3)),
        ("Window", "", 0, _NO_ONE, (0, 3)),
        ("Chair", "", 0, _NO_ONE, (0, 3)),
        ("Curtains", "", 0, _NO_ONE, (0, 1)),
    ),
)

BEDROOM = Room(
    "bedroom",
    300,
    {
        "Bed": (1, 1, 1, 1),
        "Desk": (1, 1, 1, 2),
        "Drawer": (1, 2, 2, 12),
        "SideTable": (0, 1, 0, 2),
        "Dresser": (0, 1, 0, 1),
        "Shelf": (0, 2, 0, 10),
        "Safe": (0, 1, 0, 1),
        "GarbageCan": (0, 1, 1, 1),
        "LaundryHamper": (0, 1, 0, 1),
        "ArmChair": (0, 1, 0, 2),
    },
    {"tiny": (6, 9), "official": (6, 30)},
    {"tiny": (6, 11), "official": (24, 42)},
    _words(
        AlarmClock="Desk Shelf SideTable Dresser",
        Book="Bed Desk Drawer SideTable Dresser",
        Bowl="Desk Shelf SideTable",
        CD="Desk Drawer Dresser GarbageCan Shelf",
        CellPhone="Drawer Bed Desk Safe SideTable",
        CreditCard="Drawer Desk Shelf Dresser SideTable",
        KeyChain="Drawer Desk Safe SideTable Shelf",
        Laptop="Bed Desk",
        Mug="Desk Shelf SideTable",
        Pen="Drawer Shelf Desk SideTable GarbageCan",
        Pencil="Desk Shelf Drawer SideTable Dresser",
        Pillow="Bed ArmChair",
        TissueBox="Desk Drawer Shelf",
        Vase="Shelf Desk Dresser Safe",
        Box="Desk Dresser SideTable",
        Statue="Shelf Dresser Desk",
        Watch="Dresser Drawer SideTable",
        Cloth="Drawer Desk",
        TeddyBear="Bed",
        BasketBall="Bed Desk",
        BaseballBat="Bed",
        TennisRacket="Bed Dresser",
    ),
    14,
    _fixtures(
        ("DeskLamp", "Desk SideTable Dresser Shelf", 1.0, (1, 1), (1, 1)),
        ("Mirror", "", 0, _NO_ONE, (1, 1)),
        ("LightSwitch", "", 0, (0, 1), (1, 1)),
        ("Window", "", 0, _NO_ONE, (0, 3)),
        ("Blinds", "", 0, _NO_ONE, (0, 3)),
        ("Chair", "", 0, _NO_ONE, (0, 2)),
        ("HousePlant", "Shelf Desk SideTable", 0.5, (0, 1), (0, 1)),
        ("Poster", "", 0, _NO_ONE, (0, 1)),
    ),
)

BATHROOM = Room(
    "bathroom",
    400,
    {
        "SinkBasin": (1, 1, 1, 2),
        "Toilet": (1, 1, 1, 1),
        "CounterTop": (1, 1, 1, 1),
        "Cabinet": (0, 2, 0, 6),
        "Drawer": (0, 1, 0, 8),
        "GarbageCan": (0, 1, 1, 1),
        "Shelf": (0, 1, 0, 3),
        "BathtubBasin": (0, 1, 0, 1),
        "TowelHolder": (0, 1, 1, 1),
        "HandTowelHolder": (0, 1, 1, 2),
        "ToiletPaperHanger": (0, 1, 1, 1),
        "SideTable": (0, 0, 0, 1),
        "LaundryHamper": (0, 0, 0, 1),
    },
    {"tiny": (6, 9), "official": (9, 24)},
    {"tiny": (6, 10), "official": (19, 30)},
    _words(
        Candle="Toilet Shelf CounterTop Drawer Cabinet",
        Cloth="Cabinet Drawer BathtubBasin CounterTop",
        SoapBar="Toilet CounterTop Drawer BathtubBasin SinkBasin",
        SoapBottle="CounterTop Toilet Cabinet Shelf",
        SprayBottle="CounterTop Shelf Toilet Cabinet",
        ToiletPaper="Cabinet CounterTop ToiletPaperHanger Drawer Toilet GarbageCan",
        HandTowel="HandTowelHolder CounterTop SinkBasin",
        TissueBox="Shelf Toilet Cabinet",
        Towel="TowelHolder",
        Plunger="Cabinet",
        ScrubBrush="",
    ),
    9,
    _fixtures(
        ("Sink", "SinkBasin", 0.15, (0, 1), (1, 2)),
        ("Mirror", "", 0, _NO_ONE, (1, 2)),
        ("LightSwitch", "", 0, (0, 1), (1, 1)),
        ("ShowerDoor", "", 0, _NO_ONE, (0, 1)),
        ("ShowerGlass", "", 0, _NO_ONE, (0, 1)),
        ("Window", "", 0, _NO_ONE, (0, 1)),
    ),
)

ROOMS = (KITCHEN, LIVING_ROOM, BEDROOM, BATHROOM)
BY_NAME = {room.name: room for room in ROOMS}
LIKELY_HOMES = {
    room.name: {
        cls.lower(): tuple(home.lower() for home in homes)
        for cls, homes in (*room.objects.items(), *((f.name, f.homes) for f in room.fixtures))
    }
    for room in ROOMS
}
"""Room name -> object class -> receptacle classes where it is usually found, the likeliest first; all lower-case."""

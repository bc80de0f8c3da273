"""Characters beyond ASCII whose skeleton is one ASCII letter or figure.

Source: the confusables of Unicode 15.0 (UTS 39), as ICU 72.1 gives them (`uspoof_getSkeletonUTF8`, each alone). Code
points in hexadecimal, by the skeleton. Left out are those that compatibility decomposition (NFKD) gives already.
"""

from __future__ import annotations

from typing import Final

_CODE_POINTS: Final = {
    "2": "1a7 3e8 14bf a644 a6ef a75a",
    "3": "1b7 21c 417 4e0 2ccc a76a a7ab 118ca 16f3b 1d206",
    "4": "13ce 118af",
    "5": "1bc 118bb",
    "6": "431 13ee 2cd2 118d5",
    "7": "104d2 118c6 1d212",
    "8": "222 223 9ea a6a b03 1031a 1e8cb",
    "9": "9ed a67 b68 d6d 2cca a76e 118ac 118cc 118d6",
    "A": "391 410 13aa 15c5 a4ee 102a0 16f40 1d6a8 1d6e2 1d71c 1d756 1d790",
    "B": "392 412 13f4 15f7 a4d0 a7b4 10282 102a1 10301 1d6a9 1d6e3 1d71d 1d757 1d791",
    "C": "3f9 421 13df 2ca4 a4da 102a2 10302 10415 1051c 118e9 118f2 1f74c",
    "D": "13a0 15de 15ea a4d3",
    "E": "395 415 13ac 22ff 2d39 a4f0 10286 118a6 118ae 1d6ac 1d6e6 1d720 1d75a 1d794",
    "F": "3dc 15b4 a4dd a798 10287 102a5 10525 118a2 118c2 1d213 1d7ca",
    "G": "50c 13c0 13f3 a4d6",
    "H": "397 41d 13bb 157c 2c8e a4e7 102cf 1d6ae 1d6e8 1d722 1d75c 1d796",
    "J": "37f 408 13ab 148d a4d9 a7b2",
    "K": "39a 41a 13e6 16d5 2c94 a4d7 10518 1d6b1 1d6eb 1d725 1d75f 1d799",
    "L": "13de 14aa 2cd0 a4e1 1041b 10526 118a3 118b2 16f16 1d22a",
    "M": "39c 3fa 41c 13b7 15f0 16d6 2c98 a4df 102b0 10311 1d6b3 1d6ed 1d727 1d761 1d79b",
    "N": "39d 2c9a a4e0 10513 1d6b4 1d6ee 1d728 1d762 1d79c",
    "O": (
        "39f 41e 555 7c0 9e6 b20 b66 12d0 2c9e 2d54 3007 a4f3 10292 102ab 10404 104c2 10516 114d0 118b5 118e0 "
        "1d6b6 1d6f0 1d72a 1d764 1d79e"
    ),
    "P": "3a1 420 13e2 146d 2ca2 a4d1 10295 1d6b8 1d6f2 1d72c 1d766 1d7a0",
    "Q": "2d55",
    "R": "1a6 13a1 13d2 1587 a4e3 104b4 16f35 1d216",
    "S": "405 54f 13d5 13da a4e2 10296 10420 16f3a",
    "T": "3a4 422 13a2 22a4 27d9 2ca6 a4d4 10297 102b1 10315 118bc 16f0a 1d6bb 1d6f5 1d72f 1d769 1d7a3 1f768",
    "U": "54d 1200 144c 222a 22c3 a4f4 104ce 118b8 16f42",
    "V": "474 667 6f7 13d9 142f 2d38 a4e6 a6df 1051d 118a0 16f08 1d20d",
    "W": "51c 13b3 13d4 a4ea 118e6 118ef",
    "X": (
        "3a7 425 166d 16b7 2573 2cac 2d5d a4eb a7b3 10290 102b4 10317 10322 10527 118ec 1d6be 1d6f8 1d732 1d76c 1d7a6"
    ),
    "Y": "3a5 3d2 423 4ae 13a9 13bd 2ca8 a4ec 102b2 118a4 16f43 1d6bc 1d6f6 1d730 1d76a 1d7a4",
    "Z": "396 13c3 a4dc 102f5 118a9 118e5 1d6ad 1d6e7 1d721 1d75b 1d795",
    "a": "251 3b1 430 237a 1d6c2 1d6fc 1d736 1d770 1d7aa",
    "b": "184 42c 13cf 1472 15af",
    "c": "3f2 441 1d04 2ca5 abaf 1043d",
    "d": "501 13e7 146f a4d2",
    "e": "435 4bd 212e ab32",
    "f": "584 1e9d a799 ab35",
    "g": "18d 261 581 1d83",
    "h": "4bb 570 13c2",
    "i": "131 269 26a 2db 37a 3b9 456 4cf 13a5 1fbe 2373 a647 ab75 118c3 1d6a4 1d6ca 1d704 1d73e 1d778 1d7b2",
    "j": "3f3 458",
    "l": (
        "196 1c0 399 406 4c0 5c0 5d5 5df 627 661 6f1 7ca 16c1 2223 23fd 2c92 2d4f a4f2 fe8d fe8e ffe8 1028a 10309 "
        "10320 16f28 1d6b0 1d6ea 1d724 1d75e 1d798 1e8c7 1ee00 1ee80"
    ),
    "n": "578 57c",
    "o": (
        "3bf 3c3 43e 585 5e1 647 665 6be 6c1 6d5 6f5 966 a66 ae6 be6 c02 c66 c82 ce6 d02 d20 d66 d82 e50 ed0 101d "
        "1040 10ff 1d0f 1d11 2c9f ab3d fba6 fba7 fba8 fba9 fbaa fbab fbac fbad fee9 feea feeb feec 1042c 104ea "
        "118c8 118d7 1d6d0 1d6d4 1d70a 1d70e 1d744 1d748 1d77e 1d782 1d7b8 1d7bc 1ee24 1ee64 1ee84"
    ),
    "p": "3c1 3f1 440 2374 2ca3 1d6d2 1d6e0 1d70c 1d71a 1d746 1d754 1d780 1d78e 1d7ba 1d7c8",
    "q": "51b 563 566",
    "r": "433 1d26 2c85 ab47 ab48 ab81",
    "s": "1bd 455 a731 abaa 10448 118c1",
    "u": "28b 3c5 57d 1d1c a79f ab4e ab52 104f6 118d8 1d6d6 1d710 1d74a 1d784 1d7be",
    "v": "3bd 475 5d8 1d20 2228 22c1 aba9 11706 118c0 1d6ce 1d708 1d742 1d77c 1d7b6",
    "w": "26f 461 51d 561 1d21 ab83 1170a 1170e 1170f",
    "x": "d7 445 1541 157d 166e 292b 292c 2a2f",
    "y": "263 28f 3b3 443 4af 10e7 1d8c 1eff 213d ab5a 118dc 1d6c4 1d6fe 1d738 1d772 1d7ac",
    "z": "1d22 ab93 118c4",
}
CONFUSABLES: Final = {chr(int(code, 16)): like for like, codes in _CODE_POINTS.items() for code in codes.split()}

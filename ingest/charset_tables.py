"""MySQL's character sets, where Python's codecs differ. Written by tests/support/charset_tables.py.

The source is what MySQL 9.7.4-2 itself answers for every code. `a1=0587`: the code a1 is U+0587; `a1+3=0587`: a1 is
U+0587 and so on, three codes; `a1=-`: the server has no character for it.
"""

from __future__ import annotations

# fmt: off
# By character set: the codec that comes nearest, and where it differs.
DIFFERENCES: dict[str, tuple[str, str]] = {
    "armscii8": ("latin-1", """
        a1=2741 a2=00a7 a3=0589 a4=0029 a5=0028 a6=00bb a7=00ab a8=2014 a9=002e aa=055d ab+2=002c ad=055f ae=2026
        af=055c b0=055b b1=055e b2=0531 b3=0561 b4=0532 b5=0562 b6=0533 b7=0563 b8=0534 b9=0564 ba=0535 bb=0565
        bc=0536 bd=0566 be=0537 bf=0567 c0=0538 c1=0568 c2=0539 c3=0569 c4=053a c5=056a c6=053b c7=056b c8=053c
        c9=056c ca=053d cb=056d cc=053e cd=056e ce=053f cf=056f d0=0540 d1=0570 d2=0541 d3=0571 d4=0542 d5=0572
        d6=0543 d7=0573 d8=0544 d9=0574 da=0545 db=0575 dc=0546 dd=0576 de=0547 df=0577 e0=0548 e1=0578 e2=0549
        e3=0579 e4=054a e5=057a e6=054b e7=057b e8=054c e9=057c ea=054d eb=057d ec=054e ed=057e ee=054f ef=057f
        f0=0550 f1=0580 f2=0551 f3=0581 f4=0552 f5=0582 f6=0553 f7=0583 f8=0554 f9=0584 fa=0555 fb=0585 fc=0556
        fd=0586 fe=2019 ff=0027
    """),
    "big5": ("big5", """
        a15a=fffd a1c3=fffd a1c5=fffd a1fe=fffd a240=fffd a2cc=fffd a2ce=fffd f9d6=7881 f9d7=92b9 f9d8=88cf f9d9=58bb
        f9da=6052 f9db=7ca7 f9dc=5afa
    """),
    "cp1250": ("cp1250", ""),
    "cp1251": ("cp1251", ""),
    "cp1256": ("cp1256", "8a=- 8f=- 98=- 9a=- 9f=- aa=- c0=- ff=-"),
    "cp1257": ("cp1257", ""),
    "cp850": ("cp850", ""),
    "cp852": ("cp852", ""),
    "cp866": ("cp866", "fc=207f fd=00b2"),
    "cp932": ("cp932", "80=- a0=- fd+3=-"),
    "dec8": ("latin-1", """
        a4=- a6=- a8=00a4 ac+4=- b4=- b8=- be=- d0=- d7=0152 dd=0178 de=- f0=- f7=0153 fd=00ff fe+2=-
    """),
    "eucjpms": ("euc_jp", """
        a1c1=ff5e a1c2=2225 a1dd=ff0d a1f1+2=ffe0 a2cc=ffe2 ada1+20=2460 adb5+10=2160 adc0=3349 adc1=3314 adc2=3322
        adc3=334d adc4=3318 adc5=3327 adc6=3303 adc7=3336 adc8=3351 adc9=3357 adca=330d adcb=3326 adcc=3323 adcd=332b
        adce=334a adcf=333b add0+3=339c add3+2=338e add5=33c4 add6=33a1 addf=337b ade0=301d ade1=301f ade2=2116
        ade3=33cd ade4=2121 ade5+5=32a4 adea+2=3231 adec=3239 aded=337e adee=337d adef=337c adf0=2252 adf1=2261
        adf2=222b adf3=222e adf4=2211 adf5=221a adf6=22a5 adf7=2220 adf8=221f adf9=22bf adfa=2235 adfb+2=2229
        f5a1+94=e000 f6a1+94=e05e f7a1+94=e0bc f8a1+94=e11a f9a1+94=e178 faa1+94=e1d6 fba1+94=e234 fca1+94=e292
        fda1+94=e2f0 fea1+94=e34e 8fa2b7=ff5e 8fa2c3=ffe4 8ff3f3+10=2170 8ff3fd+2=2160 8ff4a1+8=2162 8ff4a9=ff07
        8ff4aa=ff02 8ff4ab=3231 8ff4ac=2116 8ff4ad=2121 8ff4ae=70bb 8ff4af=4efc 8ff4b0=50f4 8ff4b1=51ec 8ff4b2=5307
        8ff4b3=5324 8ff4b4=fa0e 8ff4b5=548a 8ff4b6=5759 8ff4b7+2=fa0f 8ff4b9=589e 8ff4ba=5bec 8ff4bb=5cf5 8ff4bc=5d53
        8ff4bd=fa11 8ff4be=5fb7 8ff4bf=6085 8ff4c0=6120 8ff4c1=654e 8ff4c2=663b 8ff4c3=6665 8ff4c4=fa12 8ff4c5=f929
        8ff4c6=6801 8ff4c7+2=fa13 8ff4c9=6a6b 8ff4ca=6ae2 8ff4cb=6df8 8ff4cc=6df2 8ff4cd=7028 8ff4ce+2=fa15
        8ff4d0=7501 8ff4d1=7682 8ff4d2=769e 8ff4d3=fa17 8ff4d4=7930 8ff4d5+4=fa18 8ff4d9=7ae7 8ff4da+2=fa1c
        8ff4dc=7da0 8ff4dd=7dd6 8ff4de=fa1e 8ff4df=8362 8ff4e0=fa1f 8ff4e1=85b0 8ff4e2+2=fa20 8ff4e4=8807 8ff4e5=fa22
        8ff4e6=8b7f 8ff4e7=8cf4 8ff4e8=8d76 8ff4e9+3=fa23 8ff4ec=90de 8ff4ed=fa26 8ff4ee=9115 8ff4ef+2=fa27
        8ff4f1=9592 8ff4f2=f9dc 8ff4f3=fa29 8ff4f4=973b 8ff4f5=974d 8ff4f6=9751 8ff4f7+3=fa2a 8ff4fa=999e 8ff4fb=9ad9
        8ff4fc=9b72 8ff4fd=fa2d 8ff4fe=9ed1 8ff5a1+94=e3ac 8ff6a1+94=e40a 8ff7a1+94=e468 8ff8a1+94=e4c6 8ff9a1+94=e524
        8ffaa1+94=e582 8ffba1+94=e5e0 8ffca1+94=e63e 8ffda1+94=e69c 8ffea1+94=e6fa
    """),
    "euckr": ("cp949", ""),
    "gb18030": ("gb18030", "a8bc=1e3f 8135f437=e7c7"),
    "gb2312": ("gb2312", ""),
    "gbk": ("gbk", ""),
    "geostd8": ("latin-1", """
        80=20ac 81=- 82=201a 83=- 84=201e 85=2026 86+2=2020 88=- 89=2030 8a=- 8b=2039 8c+5=- 91+2=2018 93+2=201c
        95=2022 96+2=2013 98+3=- 9b=203a 9c+4=- c0+7=10d0 c7=10f1 c8+6=10d7 ce=10f2 cf+6=10dd d5=10f3 d6+12=10e3
        e2=10f4 e3+2=10ef e5=10f5 e6+23=- fd=2116 fe+2=-
    """),
    "greek": ("iso8859-7", "a1=02bd a2=02bc a4+2=- aa=-"),
    "hebrew": ("iso8859-8", "af=203e"),
    "hp8": ("hp-roman8", ""),
    "keybcs2": ("cp437", """
        80=010c 83=010f 85=010e 86=0164 87=010d 88=011b 89=011a 8a=0139 8b=00cd 8c=013e 8d=013a 8f=00c1 91=017e
        92=017d 95=00d3 96=016f 97=00da 98=00fd 9b=0160 9c=013d 9d=00dd 9e=0158 9f=0165 a4=0148 a5=0147 a6=016e
        a7=00d4 a8=0161 a9=0159 aa=0155 ab=0154
    """),
    "koi8r": ("koi8-r", ""),
    "koi8u": ("koi8-u", "95=2022"),
    "latin1": ("cp1252", "81=0081 8d=008d 8f+2=008f 9d=009d"),
    "latin2": ("iso8859-2", ""),
    "latin5": ("iso8859-9", ""),
    "latin7": ("iso8859-13", ""),
    "macce": ("mac-latin2", ""),
    "macroman": ("mac-roman", ""),
    "sjis": ("shift_jis", "815f=005c"),
    "swe7": ("latin-1", """
        40=00c9 5b=00c4 5c=00d6 5d=00c5 5e=00dc 60=00e9 7b=00e4 7c=00f6 7d=00e5 7e=00fc 7f+129=-
    """),
    "tis620": ("tis-620", "a0=fffd db=fffd dc=fffd dd=fffd de=fffd fc=fffd fd=fffd fe=fffd ff=fffd"),
    "ujis": ("euc_jp", """
        a1c0=005c f5a1+94=e000 f6a1+94=e05e f7a1+94=e0bc f8a1+94=e11a f9a1+94=e178 faa1+94=e1d6 fba1+94=e234
        fca1+94=e292 fda1+94=e2f0 fea1+94=e34e 8ff5a1+94=e3ac 8ff6a1+94=e40a 8ff7a1+94=e468 8ff8a1+94=e4c6
        8ff9a1+94=e524 8ffaa1+94=e582 8ffba1+94=e5e0 8ffca1+94=e63e 8ffda1+94=e69c 8ffea1+94=e6fa
    """),
}
# fmt: on

# Some character of theirs has two codes.
AMBIGUOUS = frozenset(("armscii8", "big5", "cp932", "eucjpms", "sjis", "tis620", "ujis"))

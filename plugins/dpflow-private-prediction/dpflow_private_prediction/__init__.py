"""Private prediction: the models stay inside, answers leave, each paid for (Dwork and Feldman
2018).
"""
